/*
 * tiles.h: the one walk over tiles. A tile is a block of rows against a run of keys; it is SKIP,
 * FULL or PARTIAL, by the intervals of its rows (core/mask.h) and by the summary of a mask tensor.
 * A walk goes over the keys of a block of rows; attn_tile_rows_seeing goes from keys to rows. Not
 * here: how the summary is read (cpu/cells.h), and counts in closed form (core/count.h).
 */
#ifndef ATTN_CORE_TILES_H
#define ATTN_CORE_TILES_H

#include "core/mask.h"

typedef enum attn_tile_kind { ATTN_TILE_SKIP, ATTN_TILE_FULL, ATTN_TILE_PARTIAL } attn_tile_kind;

/* Extents of a cell of a mask tensor. */
enum { ATTN_CELL_ROWS = 16, ATTN_CELL_KEYS = 64 };

/* The summary of a mask tensor: whether none, some or all positions of a cell are visible. */
typedef struct attn_cells {
    const unsigned char *kind; /* attn_tile_kind [batch][head][row cell][key cell]; NULL: unknown */
    int64_t rows, keys;        /* cells along an axis */
} attn_cells;

/* A block of rows of one sequence: queries of some heads. */
typedef struct attn_tile_rows {
    attn_rows_mask mask;       /* intervals of keys that the rows see */
    const attn_tensor *tensor; /* the mask tensor; NULL: there is none */
    const attn_cells *cells;   /* its summary; NULL: unknown */
    int64_t batch, step;       /* tiles begin at multiples of `step` keys */
    attn_interval heads, queries;
} attn_tile_rows;

/* A tile. `keys` are its keys from the first to the last that some row's interval holds, the first
 * rounded down to a multiple of step. */
typedef struct attn_tile {
    attn_interval keys;
    attn_tile_kind kind;
    bool cut;   /* a row's interval ends within the keys */
    bool holes; /* the mask tensor may hide a position */
} attn_tile;

/* cells: NULL where there is no mask tensor, or no summary. */
ATTN_CORE attn_tile_rows attn_tile_rows_of(const attn_problem *problem,
                                           const attn_sequence *sequence, const attn_cells *cells,
                                           attn_interval heads, attn_interval queries, int64_t step)
{
    return (attn_tile_rows){
        .mask = attn_mask_range(problem, sequence, queries.lo, queries.hi),
        .tensor = problem->mask.data ? &problem->mask : NULL,
        .cells = cells,
        .batch = sequence->index,
        .step = step,
        .heads = heads,
        .queries = queries,
    };
}

/* The kind of tile that the mask tensor alone makes of the keys; PARTIAL without a summary
 * (tiles.c). */
attn_tile_kind attn_cells_kind(const attn_tile_rows *rows, attn_interval keys);

/* The keys that some row's interval holds, the first rounded down to a multiple of step. */
ATTN_CORE attn_interval attn_tile_keys(const attn_tile_rows *rows, attn_interval keys)
{
    const attn_interval hull = rows->mask.hull;
    const int64_t lo = keys.lo > hull.lo ? keys.lo : hull.lo,
                  hi = keys.hi < hull.hi ? keys.hi : hull.hi;
    return lo < hi ? (attn_interval){lo - lo % rows->step, hi} : (attn_interval){0, 0};
}

/* The tile of these rows and keys. */
ATTN_CORE attn_tile attn_tile_at(const attn_tile_rows *rows, attn_interval keys)
{
    const attn_interval common = rows->mask.common;
    attn_tile tile = {attn_tile_keys(rows, keys), ATTN_TILE_SKIP, false, false};
    if (tile.keys.lo >= tile.keys.hi) {
        return tile;
    }
    const attn_tile_kind shown =
        rows->tensor == NULL ? ATTN_TILE_FULL : attn_cells_kind(rows, tile.keys);
    tile.cut = tile.keys.lo < common.lo || tile.keys.hi > common.hi;
    tile.holes = shown != ATTN_TILE_FULL;
    tile.kind = shown == ATTN_TILE_SKIP  ? ATTN_TILE_SKIP
                : tile.cut || tile.holes ? ATTN_TILE_PARTIAL
                                         : ATTN_TILE_FULL;
    return tile;
}

/* Returns the end of the longest run of whole tiles of `size` keys, from the first of `keys` on,
 * that no row's interval cuts. */
ATTN_CORE int64_t attn_tiles_uncut(const attn_tile_rows *rows, attn_interval keys, int64_t size)
{
    const attn_interval common = rows->mask.common;
    if (keys.lo < common.lo || keys.hi <= common.hi) {
        return keys.lo < common.lo ? keys.lo : keys.hi;
    }
    const int64_t end = common.hi - common.hi % size;
    return end > keys.lo ? end : keys.lo;
}

/* ---- the walk -------------------------------------------------------------------------------- */

/* Tiles of a block of rows, keys upwards; tiles that are SKIP are left out. */
typedef struct attn_walk {
    const attn_tile_rows *rows;
    attn_interval left; /* keys that are not walked yet */
    int64_t size;
    int64_t first; /* key of the block that the tile lies in, a multiple of size */
    attn_tile tile;
} attn_walk;

/* Begins a walk. Blocks of `size` keys are counted from the sequence's first key. */
ATTN_CORE attn_walk attn_walk_keys(const attn_tile_rows *rows, attn_interval keys, int64_t size)
{
    return (attn_walk){.rows = rows, .left = attn_tile_keys(rows, keys), .size = size};
}

/* Goes to the next tile; false behind the last. */
ATTN_CORE bool attn_walk_next(attn_walk *walk)
{
    while (walk->left.lo < walk->left.hi) {
        walk->first = walk->left.lo - walk->left.lo % walk->size;
        const int64_t end = attn_clamp(walk->first + walk->size, 0, walk->left.hi);
        walk->tile = attn_tile_at(walk->rows, (attn_interval){walk->left.lo, end});
        walk->left.lo = end;
        if (walk->tile.kind != ATTN_TILE_SKIP) {
            return true;
        }
    }
    return false;
}

/* ---- from keys to rows ----------------------------------------------------------------------- */

/* The rows (row = query x fold + head) whose intervals hold some of the keys, all below nk; counted
 * from the first of `rows` and widened to multiples of `step`. */
ATTN_CORE attn_interval attn_tile_rows_seeing(const attn_problem *problem,
                                              const attn_sequence *sequence, attn_interval keys,
                                              attn_interval rows, int64_t fold, int64_t step)
{
    const attn_interval queries = attn_mask_queries(problem, sequence, keys.lo, keys.hi);
    const int64_t lo = attn_clamp(queries.lo * fold, rows.lo, INT64_MAX) - rows.lo,
                  hi = attn_clamp(queries.hi * fold, 0, rows.hi) - rows.lo;
    if (lo >= hi) {
        return (attn_interval){0, 0};
    }
    return (attn_interval){lo / step * step, (hi + step - 1) / step * step};
}

#endif
