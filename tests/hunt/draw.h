/*
 * draw.h: random problem lines. Not here: their tensors (support/problem.h).
 */
#ifndef TESTS_HUNT_DRAW_H
#define TESTS_HUNT_DRAW_H

#include "problem.h"

/* Random numbers by a counter: a seed gives its numbers on every machine. */
typedef struct dice {
    uint64_t seed;
    int64_t thrown;
} dice;

/* Draws a number in [0, n). */
int64_t dice_roll(dice *d, int64_t n);

/* True one time in n. */
bool dice_one_in(dice *d, int64_t n);

/* Writes the line of a random problem over the whole grammar, of little work, with a kind of inputs
 * (NULL: any). The line may contradict itself: problem_parse tells. */
void draw_line(dice *d, const char *inputs, char *line, size_t size);

/* Writes a line for the relations: sequences of equal lengths, without gradients. */
void draw_plain_line(dice *d, char *line, size_t size);

/* Writes a step of decoding: at least as many keys as queries in each sequence, perhaps in
 * pages. */
void draw_step_line(dice *d, char *line, size_t size);

/* Writes a line of few rows over many keys in pages, whose first ones all sequences share. */
void draw_shared_line(dice *d, char *line, size_t size);

#endif
