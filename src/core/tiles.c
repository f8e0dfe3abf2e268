/*
 * tiles.c: see tiles.h.
 */
#include "core/tiles.h"

attn_tile_kind attn_cells_kind(const attn_tile_rows *rows, attn_interval keys)
{
    const attn_cells *cells = rows->cells;
    const attn_tensor *mask = rows->tensor;
    if (cells == NULL || cells->kind == NULL) {
        return ATTN_TILE_PARTIAL;
    }
    const bool one_head = mask->shape[1] == 1, one_row = mask->shape[2] == 1;
    const int64_t batch = mask->shape[0] == 1 ? 0 : rows->batch;
    const int64_t head = one_head ? 0 : rows->heads.lo, end_head = one_head ? 1 : rows->heads.hi;
    const int64_t row = one_row ? 0 : rows->queries.lo / ATTN_CELL_ROWS,
                  last_row = one_row ? 0 : (rows->queries.hi - 1) / ATTN_CELL_ROWS;
    bool skip = true, full = true;
    for (int64_t h = head; h < end_head; h++) {
        for (int64_t i = row; i <= last_row && (skip || full); i++) {
            const unsigned char *line =
                cells->kind + ((batch * mask->shape[1] + h) * cells->rows + i) * cells->keys;
            for (int64_t k = keys.lo / ATTN_CELL_KEYS; k <= (keys.hi - 1) / ATTN_CELL_KEYS; k++) {
                skip &= line[k] == ATTN_TILE_SKIP, full &= line[k] == ATTN_TILE_FULL;
            }
        }
    }
    return skip ? ATTN_TILE_SKIP : full ? ATTN_TILE_FULL : ATTN_TILE_PARTIAL;
}
