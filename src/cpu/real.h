/*
 * real.h: elements of arrays of a kernel table's arithmetic type, f32 or f64, for the loops around
 * the kernels; and the smaller and the larger of two indices, and the next multiple. Static, hence
 * without the library's prefix.
 */
#ifndef ATTN_CPU_REAL_H
#define ATTN_CPU_REAL_H

#include "cpu/ukernel/table.h"

static inline void set_real(const attn_ukernel *table, void *array, int64_t i, double x)
{
    if (table->real_size == 4) {
        ((float *)array)[i] = (float)x;
    } else {
        ((double *)array)[i] = x;
    }
}

static inline void fill_reals(const attn_ukernel *table, void *array, int64_t n, double x)
{
    if (table->real_size == 4) {
        for (int64_t i = 0; i < n; i++) {
            ((float *)array)[i] = (float)x;
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            ((double *)array)[i] = x;
        }
    }
}

static inline double get_real(const attn_ukernel *table, const void *array, int64_t i)
{
    return table->real_size == 4 ? (double)((const float *)array)[i] : ((const double *)array)[i];
}

/* to[0 .. n-1] = the elements from `from` on. */
static inline void get_reals(const attn_ukernel *table, double *to, const void *from, int64_t n)
{
    if (table->real_size == 4) {
        for (int64_t i = 0; i < n; i++) {
            to[i] = (double)((const float *)from)[i];
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            to[i] = ((const double *)from)[i];
        }
    }
}

static inline int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* To a multiple of `to`. */
static inline int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

#endif
