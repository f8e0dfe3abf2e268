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

/* Fetches some lines of the noted rows, if any are left. */
static inline void attn_fetch_soon(attn_soon *soon, int64_t lines)
{
    for (; lines > 0 && soon->rows > 0; lines--) {
        ATTN_PREFETCH(*soon->row + soon->offset);
        soon->offset += 64;
        if (soon->offset >= soon->bytes) {
            soon->row++, soon->rows--, soon->offset = 0;
        }
    }
}

#endif
