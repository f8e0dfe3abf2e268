/*
 * scores.c: see scores.h. The code here is per lane or per tile; loops over elements are the
 * kernels'.
 */
#include "cpu/scores.h"
#include "core/half.h"
#include "cpu/ukernel/table_grad.h"
#include <math.h>

attn_score_plan attn_plan_scores(const attn_problem *problem, const attn_ukernel *table)
{
    const double log2e = 1.4426950408889634;
    const double size = fabs(problem->scale);
    const bool tiny = (table->real_size == 4 ? (double)(float)(size * log2e) : size * log2e) == 0;
    /* otherwise LSE / scale and the least exponent / scale might overflow */
    const bool small = !tiny && size < 0x1p-100;
    attn_score_plan s = {.has_score_step = problem->softcap > 0 || problem->mask.data ||
                                           problem->bias.data || problem->alibi.data || small};
    s.factor = tiny ? 0 : problem->scale < 0 ? -1 : 1;
    s.scale = tiny ? 1 : size;
    s.exponent = s.has_score_step ? log2e : s.scale * log2e;
    return s;
}

/* Lanes beyond the last row repeat it, here and below. */
static void lane_bounds(const attn_score_rows *rows, int64_t first, int lanes, attn_interval keys)
{
    lane_row row = attn_score_row(rows, first);
    for (int lane = 0; lane < rows->table->strip; lane++) {
        attn_interval see = attn_mask_row(rows->problem, rows->seq, row.query);
        set_real(rows->table, rows->lo, lane, (double)(max64(see.lo, keys.lo) - keys.lo));
        set_real(rows->table, rows->hi, lane,
                 (double)(max64(min64(see.hi, keys.hi), keys.lo) - keys.lo));
        row = lane + 1 < lanes ? attn_score_next(rows, row) : row;
    }
}

static void lane_slopes(const attn_score_rows *rows, int64_t first, int lanes, attn_interval keys)
{
    lane_row row = attn_score_row(rows, first);
    for (int lane = 0; lane < rows->table->strip; lane++) {
        const char *slope =
            attn_at_broadcast(&rows->problem->alibi, rows->seq->index, row.head, 0, 0);
        set_real(rows->table, rows->slope, lane,
                 attn_element_to_f64(slope, rows->problem->alibi.dtype));
        set_real(rows->table, rows->distance, lane,
                 (double)(row.query + rows->seq->diagonal - keys.lo));
        row = lane + 1 < lanes ? attn_score_next(rows, row) : row;
    }
}

/* `to`: rows of up to key_tile keys. */
static void bias_tile(const attn_score_rows *work, bool masked, char *to, int64_t first, int lanes,
                      attn_interval keys)
{
    const attn_tensor *bias = &work->problem->bias, *mask = &work->problem->mask;
    attn_bias_rows rows = {.dtype = bias->dtype, .mask_dtype = mask->dtype};
    rows.bias_stride = bias->data && bias->shape[3] != 1 ? bias->stride[3] : 0;
    rows.mask_stride = mask->data && mask->shape[3] != 1 ? mask->stride[3] : 0;
    rows.mask_first = keys.lo % attn_mask_each(mask->dtype);
    lane_row row = attn_score_row(work, first);
    for (int lane = 0; lane < work->table->strip; lane++) {
        if (bias->data) {
            rows.bias[lane] =
                attn_at_broadcast(bias, work->seq->index, row.head, row.query, keys.lo);
        }
        if (masked) {
            rows.mask[lane] = attn_at_broadcast(mask, work->seq->index, row.head, row.query,
                                                keys.lo / attn_mask_each(mask->dtype));
        }
        row = lane + 1 < lanes ? attn_score_next(work, row) : row;
    }
    work->table->bias(to, keys.hi - keys.lo, &rows);
}

static void score_step(const attn_score_rows *rows, void *s, int64_t first, int lanes,
                       attn_interval keys, bool masked)
{
    const bool tensors = rows->problem->bias.data || masked, alibi = rows->problem->alibi.data;
    if (alibi) {
        lane_slopes(rows, first, lanes, keys);
    }
    if (tensors) {
        for (int64_t key = keys.lo; key < keys.hi; key += rows->table->key_tile) {
            char *to =
                (char *)rows->bias + (key - keys.lo) * rows->table->strip * rows->table->real_size;
            bias_tile(rows, masked, to, first, lanes,
                      (attn_interval){key, min64(key + rows->table->key_tile, keys.hi)});
        }
    }
    const attn_score_tile tile = {
        .scale = rows->plan->scale,
        .softcap = rows->problem->softcap,
        .slope = alibi ? rows->slope : NULL,
        .distance = rows->distance,
        .bias = tensors ? rows->bias : NULL,
    };
    rows->table->score(s, keys.hi - keys.lo, &tile, rows->all_lanes ? rows->table->strip : lanes);
}

void attn_score_tile_run(const attn_score_rows *rows, void *s, int64_t first, int lanes,
                         const attn_tile *tile)
{
    const attn_interval keys = tile->keys;
    if (rows->plan->has_score_step) {
        score_step(rows, s, first, lanes, keys, tile->holes);
    }
    if (tile->cut) {
        lane_bounds(rows, first, lanes, keys);
        rows->table->mask(s, keys.hi - keys.lo, rows->lo, rows->hi,
                          rows->all_lanes ? rows->table->strip : lanes);
    }
}

void attn_score_drop(const attn_score_rows *rows, void *tile, int64_t done, int64_t first,
                     int64_t first_key, int64_t n, bool times)
{
    const int64_t origin = attn_origin(&rows->problem->q_origin, rows->seq->index);
    attn_drop_tile drop = {.dropout = &rows->problem->dropout,
                           .first_key =
                               attn_origin(&rows->problem->k_origin, rows->seq->index) + first_key};
    lane_row row = attn_score_row(rows, first);
    for (int lane = 0; lane < rows->table->strip; lane++, row = attn_score_next(rows, row)) {
        drop.query[lane] = (uint64_t)(origin + row.query);
        drop.stream[lane] = attn_dropout_stream(&rows->problem->dropout, rows->seq->index,
                                                rows->problem->heads, row.head);
    }
    rows->table->grad->drop(tile, done, n, &drop, times);
}
