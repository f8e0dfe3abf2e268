/*
 * cells.h: a summary of a mask tensor, made once per call: for each cell of its rows and keys
 * whether none, some or all of its positions are visible. Keys that no row of a strip sees are not
 * computed, and the mask is not read again where all is visible. Not here: intervals of keys
 * (core/mask.h).
 */
#ifndef ATTN_CPU_CELLS_H
#define ATTN_CPU_CELLS_H

#include "core/arena.h"
#include "core/mask.h"
#include "cpu/ukernel/table.h"

/* Rows and keys of a cell. */
enum { ATTN_CELL_ROWS = 16, ATTN_CELL_KEYS = 64 };

typedef struct attn_cells {
    const unsigned char *kind; /* attn_tile [batch][head][row cell][key cell]; NULL: no summary */
    int64_t rows, keys;        /* cells along an axis */
} attn_cells;

/* Extents of the summary of the problem's mask, and its place in the arena; 0 cells if there is no
 * mask, or one for which a summary does not pay. */
attn_cells attn_cells_plan(const attn_problem *problem, attn_arena *arena, uint64_t *offset);

/* Reads the mask, in parallel. kind: memory for it. */
void attn_cells_fill(attn_cells *cells, const attn_problem *problem, const attn_executor *executor,
                     void *kind);

/* Visibility of queries x keys of sequence b and heads first_head .. first_head + heads - 1: no
 * position (SKIP), each of them (FULL), or PARTIAL, also where nothing is known. */
attn_tile attn_cells_kind(const attn_cells *cells, const attn_tensor *mask, int64_t b,
                          int64_t first_head, int64_t heads, attn_interval queries,
                          attn_interval keys);

#endif
