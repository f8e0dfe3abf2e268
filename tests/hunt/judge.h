/*
 * judge.h: one problem on one table, in two ways that must not matter, beside the oracle: bits,
 * errors, memory. Outputs are poisoned before, and tensors and workspace stand beside inaccessible
 * pages.
 */
#ifndef TESTS_HUNT_JUDGE_H
#define TESTS_HUNT_JUDGE_H

#include "draw.h"

/* Later problems are judged on this table alone. False: this machine lacks it. */
bool judge_only_on(const char *table);

/* Draws the name of a table to judge on. */
const char *judge_draw_table(dice *d);

/* Judges a problem on the tables with scalar's bits, two of them, and on each with bits of its own.
 * False with a sentence: the library is wrong. */
bool judge_problem(const problem_spec *spec, dice *d, char *sentence, size_t size);

/* Judges a problem with NaN sown into its inputs: beside the oracle's numbers stand the bits of the
 * problem without them. */
bool judge_sown(const problem_spec *spec, dice *d, char *sentence, size_t size);

#endif
