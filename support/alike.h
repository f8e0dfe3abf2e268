/*
 * alike.h: additions to the bounds of docs/numerics.md where terms of a sum are alike, so that
 * their roundings go one way (kappa of A1, "Terms that are alike").
 */
#ifndef SUPPORT_ALIKE_H
#define SUPPORT_ALIKE_H

#include "errors.h"
#include "problem.h"

/* How partial sums of blocks of 64 terms are added. */
typedef enum alike_order {
    ALIKE_SEGMENTS, /* CPUs: in segments, which a tree joins */
    ALIKE_RUNNING   /* GPUs: one sum over all blocks */
} alike_order;

/* Kappa of a sum of so many terms. segment: blocks of a segment; 0: one sum over all blocks. */
double alike_kappa_of(int64_t terms, int64_t block, int64_t segment);

/* The largest kappa of a call's sums: over keys, in a backward pass over rows too, and over columns
 * in scores. */
double alike_kappa(const attn_forward_args *args, bool backward, alike_order order);

/* False for values of mean 0 whose scores differ: their bounds are those without kappa. */
bool alike_possible(const problem_spec *spec);

/* The limits with kappa: O and gradients have errors of a numerator and of l, LSE has half of that,
 * the error of l or of the scores alone. */
errors_limits alike_limits(errors_limits limits, double kappa);

#endif
