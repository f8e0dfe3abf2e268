/*
 * mask.h: which keys a query row sees, as geometry. The only place where causality, windows and
 * lengths exist: every kind of them is one interval of keys per row, whose ends attn_mask_first and
 * attn_mask_end give. All else follows from these two, since both grow by one from row to row: the
 * intervals of several rows, the queries that see some keys, bands of 32 bits, and the kinds of
 * tiles (core/tiles.h). Mask tensors are not geometry: they reach the kernels as -inf scores
 * (cpu/scores.h, score.cuh).
 */
#ifndef ATTN_CORE_MASK_H
#define ATTN_CORE_MASK_H

#include "core/problem.h"

/* Beyond every key and position, with room for sums. */
#define ATTN_FAR (INT64_MAX / 2)

/* Keys lo .. hi-1; empty if lo >= hi, always within [0, nk]. */
typedef struct attn_interval {
    int64_t lo, hi;
} attn_interval;

/* The first key of row i, and the end of its keys, before they are cut to the existing ones. */
ATTN_CORE int64_t attn_mask_first(const attn_problem *problem, const attn_sequence *sequence,
                                  int64_t i)
{
    return problem->window_left == ATTN_UNBOUNDED ? -ATTN_FAR
                                                  : i + sequence->diagonal - problem->window_left;
}

ATTN_CORE int64_t attn_mask_end(const attn_problem *problem, const attn_sequence *sequence,
                                int64_t i)
{
    return problem->window_right == ATTN_UNBOUNDED
               ? ATTN_FAR
               : i + sequence->diagonal + problem->window_right + 1;
}

ATTN_CORE attn_interval attn_mask_row(const attn_problem *problem, const attn_sequence *sequence,
                                      int64_t i)
{
    attn_interval v = {attn_clamp(attn_mask_first(problem, sequence, i), 0, sequence->nk),
                       attn_clamp(attn_mask_end(problem, sequence, i), 0, sequence->nk)};
    if (i >= sequence->nq_used || v.hi <= v.lo) {
        v.lo = v.hi = 0;
    }
    return v;
}

/* Not all of the sequence's used rows see the same keys. */
ATTN_CORE bool attn_mask_differs(const attn_problem *problem)
{
    return problem->window_left != ATTN_UNBOUNDED || problem->window_right != ATTN_UNBOUNDED;
}

/* The intervals of a set of rows: their hull, and the keys that every row sees. */
typedef struct attn_rows_mask {
    attn_interval hull, common;
} attn_rows_mask;

/* Rows first .. last-1 of one sequence at once: both bounds grow with the row. Rows that are not in
 * use see no key. */
ATTN_CORE attn_rows_mask attn_mask_range(const attn_problem *problem, const attn_sequence *sequence,
                                         int64_t first, int64_t last)
{
    attn_rows_mask mask = {{INT64_MAX, 0}, {INT64_MAX, 0}};
    const int64_t end = last < sequence->nq_used ? last : sequence->nq_used;
    if (first >= end) {
        return mask;
    }
    mask.hull.lo = attn_clamp(attn_mask_first(problem, sequence, first), 0, sequence->nk);
    mask.common.lo = attn_clamp(attn_mask_first(problem, sequence, end - 1), 0, sequence->nk);
    mask.hull.hi = attn_clamp(attn_mask_end(problem, sequence, end - 1), 0, sequence->nk);
    mask.common.hi =
        end < last ? 0 : attn_clamp(attn_mask_end(problem, sequence, first), 0, sequence->nk);
    return mask;
}

/* The queries that see some of keys first .. last-1, all below nk. */
ATTN_CORE attn_interval attn_mask_queries(const attn_problem *problem,
                                          const attn_sequence *sequence, int64_t first,
                                          int64_t last)
{
    return (attn_interval){
        attn_clamp(first - attn_mask_end(problem, sequence, 0) + 1, 0, sequence->nq_used),
        attn_clamp(last - attn_mask_first(problem, sequence, 0), 0, sequence->nq_used)};
}

/* A sequence's intervals in 32 bits, for GPUs and lengths below 2^30: of the keys there are, row i
 * < rows sees i + from .. i + to - 1. */
typedef struct attn_band {
    int32_t from, to, rows, keys;
} attn_band;

ATTN_CORE attn_band attn_mask_band(const attn_problem *problem, const attn_sequence *sequence)
{
    const int64_t most = INT64_C(1) << 30; /* so far from row 0 a bound is beyond all keys */
    return (attn_band){
        (int32_t)attn_clamp(attn_mask_first(problem, sequence, 0), -most, most),
        (int32_t)attn_clamp(attn_mask_end(problem, sequence, 0), -most, sequence->nk),
        (int32_t)sequence->nq_used, (int32_t)sequence->nk};
}

/* attn_mask_row. */
ATTN_CORE void attn_band_row(const attn_band *b, int32_t i, int32_t *lo, int32_t *hi)
{
    *lo = *hi = 0;
    if (i < b->rows) {
        int32_t from = i + b->from > 0 ? i + b->from : 0,
                to = i + b->to < b->keys ? i + b->to : b->keys;
        *lo = from < to ? from : 0, *hi = from < to ? to : 0;
    }
}

#endif
