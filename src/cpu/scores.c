/*
 * scores.c: see scores.h. The code here is per lane or per tile; loops over elements are the
 * kernels'.
 */
#include "cpu/scores.h"
#include "core/half.h"
#include "cpu/ukernel/table_grad.h"
#include <math.h>

attn_score_plan attn_plan_scores(const attn_problem *p, const attn_ukernel *uk)
{
    const double log2e = 1.4426950408889634;
    const double size = fabs(p->scale);
    const bool tiny = (uk->real_size == 4 ? (double)(float)(size * log2e) : size * log2e) == 0;
    /* otherwise LSE / scale and the least exponent / scale might leave the type */
    const bool small = !tiny && size < 0x1p-100;
    attn_score_plan s = {.step = p->softcap > 0 || p->mask.data || p->bias.data || p->alibi.data ||
                                 small};
    s.factor = tiny ? 0 : p->scale < 0 ? -1 : 1;
    s.scale = tiny ? 1 : size;
    s.exponent = s.step ? log2e : s.scale * log2e;
    return s;
}

attn_rows_mask attn_score_rows_mask(const attn_score_run *r, int64_t first, int lanes)
{
    attn_rows_mask mask = attn_mask_none();
    int64_t query = first / r->fold, last = lanes > 0 ? (first + lanes - 1) / r->fold : query - 1;
    if (!attn_mask_differs(r->p) && query < last && last < r->seq->nq_used) {
        query = last; /* for all of them */
    }
    for (; query <= last; query++) {
        attn_mask_add(&mask, attn_mask_row(r->p, r->seq, query));
    }
    return mask;
}

/* Lanes beyond the last row repeat it, here and below. */
static void lane_bounds(const attn_score_run *r, int64_t first, int lanes, attn_interval keys)
{
    lane_row row = attn_score_row(r, first);
    for (int lane = 0; lane < r->uk->strip; lane++) {
        attn_interval see = attn_mask_row(r->p, r->seq, row.query);
        set_real(r->uk, r->lo, lane, (double)(max64(see.lo, keys.lo) - keys.lo));
        set_real(r->uk, r->hi, lane, (double)(max64(min64(see.hi, keys.hi), keys.lo) - keys.lo));
        row = lane + 1 < lanes ? attn_score_next(r, row) : row;
    }
}

static void lane_slopes(const attn_score_run *r, int64_t first, int lanes, attn_interval keys)
{
    lane_row row = attn_score_row(r, first);
    for (int lane = 0; lane < r->uk->strip; lane++) {
        const char *slope = attn_at_broadcast(&r->p->alibi, r->seq->index, row.head, 0, 0);
        set_real(r->uk, r->slope, lane, attn_element_to_f64(slope, r->p->alibi.dtype));
        set_real(r->uk, r->distance, lane, (double)(row.query + r->seq->diagonal - keys.lo));
        row = lane + 1 < lanes ? attn_score_next(r, row) : row;
    }
}

/* `to`: rows of up to key_tile keys. */
static void bias_tile(const attn_score_run *r, bool masked, char *to, int64_t first, int lanes,
                      attn_interval keys)
{
    const attn_tensor *bias = &r->p->bias, *mask = &r->p->mask;
    attn_bias_rows rows = {.dtype = bias->dtype, .mask_dtype = mask->dtype};
    rows.bias_stride = bias->data && bias->shape[3] != 1 ? bias->stride[3] : 0;
    rows.mask_stride = mask->data && mask->shape[3] != 1 ? mask->stride[3] : 0;
    lane_row row = attn_score_row(r, first);
    for (int lane = 0; lane < r->uk->strip; lane++) {
        if (bias->data) {
            rows.bias[lane] = attn_at_broadcast(bias, r->seq->index, row.head, row.query, keys.lo);
        }
        if (masked) {
            rows.mask[lane] = attn_at_broadcast(mask, r->seq->index, row.head, row.query, keys.lo);
        }
        row = lane + 1 < lanes ? attn_score_next(r, row) : row;
    }
    r->uk->bias(to, keys.hi - keys.lo, &rows);
}

attn_tile attn_score_mask_kind(const attn_score_run *r, int64_t first, int lanes,
                               attn_interval keys)
{
    const attn_interval queries = {first / r->fold, (first + lanes - 1) / r->fold + 1};
    return attn_cells_kind(r->cells, &r->p->mask, r->seq->index, r->first_head, r->fold, queries,
                           keys);
}

static void score_step(const attn_score_run *r, void *s, int64_t first, int lanes,
                       attn_interval keys)
{
    const bool masked =
        r->p->mask.data && attn_score_mask_kind(r, first, lanes, keys) != ATTN_TILE_FULL;
    const bool tensors = r->p->bias.data || masked, alibi = r->p->alibi.data;
    if (alibi) {
        lane_slopes(r, first, lanes, keys);
    }
    if (tensors) {
        for (int64_t key = keys.lo; key < keys.hi; key += r->uk->key_tile) {
            char *to = (char *)r->bias + (key - keys.lo) * r->uk->strip * r->uk->real_size;
            bias_tile(r, masked, to, first, lanes,
                      (attn_interval){key, min64(key + r->uk->key_tile, keys.hi)});
        }
    }
    const attn_score_tile tile = {
        .scale = r->plan->scale,
        .softcap = r->p->softcap,
        .slope = alibi ? r->slope : NULL,
        .distance = r->distance,
        .bias = tensors ? r->bias : NULL,
    };
    r->uk->score(s, keys.hi - keys.lo, &tile, r->all_lanes ? r->uk->strip : lanes);
}

void attn_score_tile_run(const attn_score_run *r, void *s, int64_t first, int lanes,
                         attn_interval keys, attn_tile kind)
{
    if (r->plan->step) {
        score_step(r, s, first, lanes, keys);
    }
    if (kind == ATTN_TILE_PARTIAL) {
        lane_bounds(r, first, lanes, keys);
        r->uk->mask(s, keys.hi - keys.lo, r->lo, r->hi, r->all_lanes ? r->uk->strip : lanes);
    }
}

void attn_score_drop(const attn_score_run *r, void *tile, int64_t done, int64_t first,
                     int64_t first_key, int64_t n, bool times)
{
    const int64_t origin = attn_origin(&r->p->q_origin, r->seq->index);
    attn_drop_tile drop = {.dropout = &r->p->dropout,
                           .first_key = attn_origin(&r->p->k_origin, r->seq->index) + first_key};
    lane_row row = attn_score_row(r, first);
    for (int lane = 0; lane < r->uk->strip; lane++, row = attn_score_next(r, row)) {
        drop.query[lane] = (uint64_t)(origin + row.query);
        drop.stream[lane] =
            attn_dropout_stream(&r->p->dropout, r->seq->index, r->p->heads, row.head);
    }
    r->uk->grad->drop(tile, done, n, &drop, times);
}

void attn_score_note_visible(const attn_ukernel *uk, const void *s, int64_t n,
                             unsigned char *visible)
{
    for (int64_t i = 0; i < n * uk->strip; i++) {
        visible[i] = (unsigned char)(get_real(uk, s, i) != -INFINITY);
    }
}
