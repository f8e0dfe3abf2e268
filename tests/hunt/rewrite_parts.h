/*
 * rewrite_parts.h: what the files of rewrite.h share: where rows lie in a form, and its views.
 */
#ifndef TESTS_HUNT_REWRITE_PARTS_H
#define TESTS_HUNT_REWRITE_PARTS_H

#include "rewrite.h"

/* Adds words to the form's name. */
void note(rewritten *r, const char *word);

/* Lengths of a sequence. Pages end where their last one does. */
int64_t rows_of(const problem_spec *spec, int64_t b);
int64_t keys_of(const problem_spec *spec, int64_t b);

/* Index (axis 0, axis 1) of row i of sequence b in Q, or of a key in K, in pages by a table. */
struct at {
    int64_t outer, row;
};

struct at place_row(const problem_spec *spec, int64_t b, int64_t i);
struct at place_key(const problem_spec *spec, const attn_tensor *table, int64_t b, int64_t j);

char *element(const attn_tensor *t, const int64_t at[4]);

/* An index, but 0 on an axis that is broadcast. */
int64_t on_axis(const attn_tensor *t, int axis, int64_t i);

/* Writes axes that are broadcast out, some of them. */
void write_out_scores(rewritten *r, dice *d);

/* Draws wider types of inputs, O in two types, fewer results. */
void change_types(rewritten *r, dice *d);

/* Keeps one sequence, or some KV heads. */
void keep_sequence(rewritten *r, dice *d);
void keep_heads(rewritten *r, dice *d);

#endif
