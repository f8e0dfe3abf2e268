/*
 * count.h: the extents of a problem, whose products must fit; the costs of a forward pass by its
 * geometry: tiles of each kind, visible scores, operations and bytes.
 */
#ifndef ATTN_CORE_COUNT_H
#define ATTN_CORE_COUNT_H

#include "core/problem.h"

/* Sets *rows to the rows of all heads. False if they are more than `most`, or the heads of all
 * sequences times `keys` are; extents of 0 count as 1, so that all products of extents fit. */
bool attn_count_extents(const attn_problem *problem, int64_t keys, int64_t most, int64_t *rows);

typedef struct attn_tile_count {
    int64_t full, partial, skipped;
    double scores; /* visible ones */
} attn_tile_count;

/* Rows and keys of a tile. `fold` heads share it: row r is query r / fold. */
typedef struct attn_tiling {
    int64_t rows, fold, keys;
} attn_tiling;

/* Adds the tiles of one sequence, `times` over, in time that does not grow with its lengths. Beyond
 * 63 bits counts are INT64_MAX. */
void attn_count_tiles(attn_tile_count *count, const attn_problem *problem,
                      const attn_sequence *sequence, const attn_tiling *tiling, int64_t times);

/* The bytes of all elements of a tensor, without gaps; 0 for an absent one. */
double attn_count_bytes(const attn_tensor *tensor);

/* Sets tiles, flops, bytes_tiled and bytes_standard of the plan. kv_passes: how often K and V come
 * from memory; real_size: bytes of a score in standard attention. */
void attn_count_costs(const attn_tile_count *count, const attn_problem *problem, double kv_passes,
                      double real_size, attn_plan *plan);

#endif
