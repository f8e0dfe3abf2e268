/*
 * scores.h: from a tile of products Q K^T to its scores: scale, softcap, bias, ALiBi, mask. This is
 * the step between qk and the softmax, for both passes. Not here: the arithmetic (table.h: score,
 * mask, bias) and the geometry of masks (core/mask.h).
 */
#ifndef ATTN_CPU_SCORES_H
#define ATTN_CPU_SCORES_H

#include "core/tiles.h"
#include "cpu/real.h"
#include "cpu/ukernel/table.h"

/* The part of a plan that says how scores are computed. */
typedef struct attn_score_plan {
    bool has_score_step; /* softcap, bias, mask tensor or ALiBi: scores get a pass of their own */
    double factor;       /* factor of Q when packed: the sign of the scale, or 0 */
    double scale;        /* scale of the scores in the score step, > 0 */
    double exponent;     /* c of the softmax: probabilities are 2^((score - maximum) c) */
} attn_score_plan;

attn_score_plan attn_plan_scores(const attn_problem *problem, const attn_ukernel *table);

/* The rows that an item works on, and room for a tile's arrays. Row r is query r / fold of head
 * first_head + r % fold: the heads of a group are folded in. */
typedef struct attn_score_rows {
    const attn_problem *problem;
    const attn_ukernel *table;
    const attn_score_plan *plan;
    const attn_sequence *seq;
    const attn_cells *cells; /* of the mask tensor; NULL: not known */
    int64_t first_head, fold;
    /* also lanes beyond the last row: products over rows go on with them */
    bool all_lanes;
    char *bias;                       /* real [key_block][strip]; only with a mask or bias tensor */
    char *lo, *hi, *slope, *distance; /* real [strip] */
} attn_score_rows;

/* Bytes of lo, hi, slope and distance together, which lie one after the other. */
static inline uint64_t attn_score_lane_bytes(const attn_ukernel *table)
{
    return 4 * (uint64_t)table->strip * (uint64_t)table->real_size;
}

static inline void attn_score_lanes(attn_score_rows *rows, char *lanes)
{
    int64_t bytes = rows->table->strip * rows->table->real_size;
    rows->lo = lanes, rows->hi = lanes + bytes, rows->slope = lanes + 2 * bytes,
    rows->distance = lanes + 3 * bytes;
}

typedef struct lane_row {
    int64_t query, head;
} lane_row;

static inline lane_row attn_score_row(const attn_score_rows *rows, int64_t row)
{
    const int64_t query = rows->fold == 1 ? row : row / rows->fold; /* divisions are slow */
    return (lane_row){query, rows->first_head + row - query * rows->fold};
}

/* The row after. */
static inline lane_row attn_score_next(const attn_score_rows *rows, lane_row row)
{
    return row.head + 1 < rows->first_head + rows->fold
               ? (lane_row){row.query, row.head + 1}
               : (lane_row){row.query + 1, rows->first_head};
}

/* Rows first .. last-1 as a block, with tiles that begin at multiples of `step` keys. */
static inline attn_tile_rows attn_score_tile_rows(const attn_score_rows *rows, int64_t first,
                                                  int64_t last, int64_t step)
{
    const attn_interval heads = {rows->first_head, rows->first_head + rows->fold};
    const attn_interval queries = {attn_score_row(rows, first).query,
                                   last > first ? attn_score_row(rows, last - 1).query + 1 : 0};
    return attn_tile_rows_of(rows->problem, rows->seq, rows->cells, heads, queries, step);
}

/* Computes the scores of rows first .. first + lanes - 1 and the keys of their tile, in place of
 * the products s[key][strip]; -inf where masked. */
void attn_score_tile_run(const attn_score_rows *rows, void *s, int64_t first, int lanes,
                         const attn_tile *tile);

/* Writes Z of C11 for those rows and n keys from first_key on into the tile; with `times`,
 * multiplies it into P from its key `done` on. */
void attn_score_drop(const attn_score_rows *rows, void *tile, int64_t done, int64_t first,
                     int64_t first_key, int64_t n, bool times);

#endif
