/*
 * cells.h: makes the summary of a mask tensor (attn_cells of core/tiles.h), once per call. With it
 * keys that no row of a strip sees are not computed, and a mask that shows everything is not read
 * again. Not here: the kinds of tiles that follow from it (core/tiles.h).
 */
#ifndef ATTN_CPU_CELLS_H
#define ATTN_CPU_CELLS_H

#include "core/arena.h"
#include "core/tiles.h"

/* Extents of the summary of the problem's mask, and its place in the arena; 0 cells if there is no
 * mask, or one for which a summary does not pay. */
attn_cells attn_cells_plan(const attn_problem *problem, attn_arena *arena, uint64_t *offset);

/* Reads the mask, in parallel. kind: memory for it. */
void attn_cells_fill(attn_cells *cells, const attn_problem *problem, const attn_executor *executor,
                     void *kind);
#endif
