/*
 * mask.h: which keys a query row sees, as geometry. The only place where causality, windows and
 * lengths exist: every kind of them is one interval of keys per row, and a tile is skipped, full or
 * partly masked by comparing intervals. Boolean masks are not geometry: they reach the kernels as
 * -inf scores (cpu/scores.h, score.cuh).
 */
#ifndef ATTN_CORE_MASK_H
#define ATTN_CORE_MASK_H

#include "core/problem.h"

/* Keys lo .. hi-1; empty if lo >= hi, always within [0, nk]. */
typedef struct attn_interval {
    int64_t lo, hi;
} attn_interval;

ATTN_CORE attn_interval attn_mask_row(const attn_problem *p, const attn_sequence *s, int64_t i)
{
    attn_interval v = {0, s->nk};
    if (i >= s->nq_used) {
        v.hi = 0;
        return v;
    }
    int64_t at = i + s->diagonal;
    if (p->window_left != ATTN_UNBOUNDED && at - p->window_left > v.lo) {
        v.lo = at - p->window_left;
    }
    if (p->window_right != ATTN_UNBOUNDED && at + p->window_right + 1 < v.hi) {
        v.hi = at + p->window_right + 1;
    }
    if (v.hi <= v.lo) {
        v.lo = v.hi = 0;
    }
    return v;
}

/* Not all of the sequence's used rows see the same keys. */
ATTN_CORE bool attn_mask_differs(const attn_problem *p)
{
    return p->window_left != ATTN_UNBOUNDED || p->window_right != ATTN_UNBOUNDED;
}

/* The intervals of a set of rows at once: their hull, and the keys that all of them see. */
typedef struct attn_rows_mask {
    attn_interval hull, common;
} attn_rows_mask;

ATTN_CORE attn_rows_mask attn_mask_none(void)
{
    return (attn_rows_mask){{INT64_MAX, 0}, {0, INT64_MAX}};
}

ATTN_CORE void attn_mask_add(attn_rows_mask *m, attn_interval row)
{
    if (row.lo < row.hi) {
        m->hull.lo = row.lo < m->hull.lo ? row.lo : m->hull.lo;
        m->hull.hi = row.hi > m->hull.hi ? row.hi : m->hull.hi;
    }
    m->common.lo = row.lo > m->common.lo ? row.lo : m->common.lo;
    m->common.hi = row.hi < m->common.hi ? row.hi : m->common.hi;
}

/* Rows first .. last-1 of one sequence at once: both bounds grow with the row. */
ATTN_CORE attn_rows_mask attn_mask_range(const attn_problem *p, const attn_sequence *s,
                                         int64_t first, int64_t last)
{
    attn_rows_mask m = {{0, s->nk}, {0, s->nk}};
    last = last < s->nq_used ? last : s->nq_used;
    if (first >= last) {
        return attn_mask_none();
    }
    int64_t low = first + s->diagonal, high = last - 1 + s->diagonal;
    if (p->window_left != ATTN_UNBOUNDED) {
        m.hull.lo = attn_clamp(low - p->window_left, 0, s->nk);
        m.common.lo = attn_clamp(high - p->window_left, 0, s->nk);
    }
    if (p->window_right != ATTN_UNBOUNDED) {
        m.hull.hi = attn_clamp(high + p->window_right + 1, 0, s->nk);
        m.common.hi = attn_clamp(low + p->window_right + 1, 0, s->nk);
    }
    return m;
}

/* The queries that see some of keys first .. last-1, all below nk. */
ATTN_CORE attn_interval attn_mask_queries(const attn_problem *p, const attn_sequence *s,
                                          int64_t first, int64_t last)
{
    attn_interval v = {0, s->nq_used};
    if (p->window_right != ATTN_UNBOUNDED) {
        v.lo = attn_clamp(first - p->window_right - s->diagonal, 0, s->nq_used);
    }
    if (p->window_left != ATTN_UNBOUNDED) {
        v.hi = attn_clamp(last + p->window_left - s->diagonal, 0, s->nq_used);
    }
    return v;
}

/* A sequence's intervals in 32 bits, for GPUs and lengths below 2^30: of the keys there are, row i
 * < rows sees i + from .. i + to - 1. */
typedef struct attn_band {
    int32_t from, to, rows, keys;
} attn_band;

ATTN_CORE attn_band attn_mask_band(const attn_problem *p, const attn_sequence *s)
{
    const int64_t most = INT64_C(1) << 30; /* so far from row 0 a bound is beyond all keys */
    attn_band b = {-(1 << 30), (int32_t)s->nk, (int32_t)s->nq_used, (int32_t)s->nk};
    if (p->window_left != ATTN_UNBOUNDED) {
        b.from = (int32_t)attn_clamp(s->diagonal - p->window_left, -most, most);
    }
    if (p->window_right != ATTN_UNBOUNDED) {
        b.to = (int32_t)attn_clamp(s->diagonal + p->window_right + 1, -most, s->nk);
    }
    return b;
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

typedef enum attn_tile { ATTN_TILE_SKIP, ATTN_TILE_FULL, ATTN_TILE_PARTIAL } attn_tile;

/* The tile of these rows and keys first .. last-1; *keys = the part of it that any row sees. */
ATTN_CORE attn_tile attn_mask_tile(const attn_rows_mask *m, int64_t first, int64_t last,
                                   attn_interval *keys)
{
    keys->lo = first > m->hull.lo ? first : m->hull.lo;
    keys->hi = last < m->hull.hi ? last : m->hull.hi;
    if (keys->lo >= keys->hi) {
        return ATTN_TILE_SKIP;
    }
    return keys->lo >= m->common.lo && keys->hi <= m->common.hi ? ATTN_TILE_FULL
                                                                : ATTN_TILE_PARTIAL;
}

#endif
