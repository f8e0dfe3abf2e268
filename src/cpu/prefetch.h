/*
 * prefetch.h: a row of a tensor towards the second-level cache, for the loops of both passes, which
 * know the rows to pack next. Not for panels, which lie there already (attn_ahead in table.h).
 */
#ifndef ATTN_CPU_PREFETCH_H
#define ATTN_CPU_PREFETCH_H

#include "core/compiler.h"
#include "core/half.h"
#include "cpu/ukernel/table.h"

/* Prefetches columns 0 .. cols-1 of row i. */
static inline void attn_prefetch_row(const attn_rows *rows, int64_t i, int64_t cols)
{
    const int64_t size = attn_element_size(rows->dtype);
    const char *row = (const char *)rows->data + i * rows->row_stride * size;
    for (int64_t byte = 0; byte < cols * size; byte += 64) {
        ATTN_PREFETCH(row + byte * rows->col_stride);
    }
}

/* Opens the run behind all others. Returns its first row, if there is one. */
static inline const char *const *attn_then_soon(attn_soon *soon)
{
    const char *const *row = soon->then;
    soon->end_of_one = soon->end_of_all = soon->then_end;
    soon->run = 1, soon->back = 0, soon->then = NULL;
    return row;
}

/* Goes on to the next row, of the next run. Behind the last one no lines are due. */
ATTN_INLINE void attn_next_soon(attn_soon *soon)
{
    const char *const *row = soon->row;
    if (!row) {
        soon->each = 0;
        return;
    }
    soon->at = *row, soon->end = *row + soon->bytes;
    row += soon->run;
    if (row >= soon->end_of_all) {
        row -= soon->back;
        row = row < soon->end_of_one ? row : attn_then_soon(soon);
    }
    soon->row = row;
}

/* Fetches the lines that are due when a member is done with `elements` elements of K or V, if any
 * are left. soon may be NULL. */
ATTN_INLINE void attn_fetch_soon(attn_soon *soon, int64_t elements)
{
    if (!soon || soon->each == 0) {
        return;
    }
    const uint64_t due = (uint64_t)(soon->due + elements * soon->each);
    const char *at = soon->at, *to = at + due / ATTN_SOON_LINE * 64;
    soon->due = (int64_t)(due % ATTN_SOON_LINE);
    while (to > soon->end) { /* those of the next row, too */
        const int64_t rest = to - soon->end;
        for (; at < soon->end; at += 64) {
            ATTN_PREFETCH(at);
        }
        soon->at = soon->end;
        attn_next_soon(soon);
        if (soon->each == 0) {
            return;
        }
        at = soon->at, to = at + rest;
    }
    for (; at < to; at += 64) {
        ATTN_PREFETCH(at);
    }
    soon->at = at;
    if (at == soon->end) {
        attn_next_soon(soon);
    }
}

/* Fetches so many lines, in a step that ends with them. Those behind a row's end are lost. */
ATTN_INLINE void attn_fetch_lines(attn_soon *soon, const int lines)
{
    if (soon->each == 0) {
        return;
    }
    ATTN_UNROLL for (int i = 0; i < lines; i++) ATTN_PREFETCH(soon->at + 64 * i);
    soon->at += 64 * lines;
    if (soon->at >= soon->end) {
        attn_next_soon(soon);
    }
}

#endif
