/*
 * compare.h: `train_gpt --compare`: both ways of attention side by side.
 */
#ifndef TRAIN_GPT_COMPARE_H
#define TRAIN_GPT_COMPARE_H

#include <stdio.h>

#include "options.h"
#include "text.h"

/* Trains three models from the same seed in step: with libattn, with standard attention, and with
 * standard attention and initial weights moved by one rounding, which shows how far rounding alone
 * drives losses apart. Then times one forward and backward pass of attention alone by context.
 * Prints a table on out for each; with o->json a JSON object on stdout. */
void compare(const options *o, const text *from, FILE *out);

/* compare_contexts.c: the second table. */
enum { MAX_CONTEXTS = 8 };

typedef struct context_row {
    int length;
    double seconds[2], bytes[2]; /* by attention_kind; seconds < 0: not run, out of memory */
} context_row;

/* Fills rows for 256, 512 .. 16384 positions and prints each. Returns their number. */
int compare_contexts(const options *o, context_row rows[MAX_CONTEXTS], FILE *out);

#endif
