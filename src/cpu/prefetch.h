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
        row = row < soon->end_of_one ? row : NULL;
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

#endif
