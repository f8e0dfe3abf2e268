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

/* Fetches some of the rows that are read soon, if any are left. */
static inline void attn_fetch_soon(attn_soon *soon, int64_t rows)
{
    for (; rows > 0 && soon->rows > 0; rows--, soon->rows--, soon->row++) {
        for (int64_t byte = 0; byte < soon->bytes; byte += 64) {
            ATTN_PREFETCH(*soon->row + byte);
        }
    }
}

#endif
