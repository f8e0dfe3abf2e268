/*
 * sums.h: exact sums, which kernels are judged by: in double, which holds products of f32 and
 * narrower elements exactly, and for kernels of f64 in long double, which some machines compute in
 * software.
 */
#ifndef TESTS_CHECKATTN_SUMS_H
#define TESTS_CHECKATTN_SUMS_H

#include "kit.h"

/* A sum of products, and the sum of their sizes. */
typedef struct exact_sum {
    double value, size;
} exact_sum;

exact_sum exact_dot(const kernel_kit *kit, const double *x, const double *y, int64_t n);

/* Takes the softmax of n scores, 2 KIT_MOST_KEYS at most, for exact_average; -inf = not visible.
 * False if none is visible. */
bool exact_softmax(const kernel_kit *kit, const double *s, int64_t n);

/* The average of as many values by that softmax. Those not visible may be no numbers. */
exact_sum exact_average(const kernel_kit *kit, const double *y, int64_t n);

#endif
