/*
 * strip.c: see strip.h. Runs once per strip; its cost matters for short sequences only.
 */
#include "cpu/forward/strip.h"
#include "core/half.h"
#include "core/segment.h"
#include "core/softmax.h"
#include "cpu/forward/nodes.h"
#include "cpu/prefetch.h"
#include <math.h>
#include <string.h>

void attn_strip_reset(const attn_forward_item *item, int strip_index)
{
    attn_strip_begin(item, strip_index);
    item->sums[strip_index] = (attn_sums){.segment = -1};
    fill_reals(item->table, strip_row_max(item, strip_index), item->table->strip, -INFINITY);
    /* otherwise the first block's products are stored to OT, not added */
    if (strip_sees_nothing(item, strip_index) || item->problem->mask.data) {
        memset(strip_ot(item, strip_index), 0,
               (size_t)(item->plan->dv_pad * item->table->strip * item->table->real_size));
    }
}

/* Lists a strip's rows where they belong to several sequences, members of a family. */
static void member_rows(const attn_forward_item *item, const attn_tensor *tensor, lane_row at,
                        void **row, int lanes)
{
    const int64_t each = item->problem->q.shape[1];
    for (int lane = 0; lane < lanes; lane++, at = attn_score_next(&item->scores, at)) {
        row[lane] = attn_at(tensor, item->members[at.query / each], at.query % each, at.head, 0);
    }
}

/* row[lane] = address of the strip's row in a tensor. Returns the number of rows. */
static int strip_rows(const attn_forward_item *item, int strip_index, const attn_tensor *tensor,
                      void **row)
{
    const int64_t size = attn_element_size(tensor->dtype), fold = item->scores.fold,
                  lanes = strip_lanes(item, strip_index);
    const lane_row first = attn_score_row(&item->scores, strip_first(item, strip_index));
    char *at = attn_at(tensor, item->seq.tensor, item->seq.q_first + first.query,
                       item->scores.first_head, 0);
    int64_t head = first.head - item->scores.first_head, query = 0;
    if (item->members) {
        member_rows(item, tensor, first, row, (int)lanes);
        return (int)lanes;
    }
    if (fold == 1) { /* one head: a row is a stride behind the last, without products */
        for (int64_t lane = 0, step = tensor->stride[1] * size; lane < lanes; lane++, at += step) {
            row[lane] = at;
        }
        return (int)lanes;
    }
    for (int lane = 0; lane < lanes; lane++) {
        row[lane] = at + (query * tensor->stride[1] + head * tensor->stride[2]) * size;
        head++;
        if (head == fold) {
            head = 0, query++;
        }
    }
    return (int)lanes;
}

static void prefetch_strip(const attn_forward_item *item, int strip_index,
                           const attn_tensor *tensor, int64_t cols)
{
    void *row[ATTN_MAX_STRIP];
    const int lanes = strip_rows(item, strip_index, tensor, row);
    for (int lane = 0; lane < lanes; lane++) {
        attn_prefetch_row(&(attn_rows){row[lane], 0, tensor->stride[3], tensor->dtype, NULL, {0}},
                          0, cols);
    }
}

/* Prefetches rows of the next strip, while this one's are moved, if they lie far away. */
static void prefetch_next(const attn_forward_item *item, int strip_index, const attn_tensor *tensor,
                          int64_t cols)
{
    if (item->plan->far_rows && item->heads == 1 && strip_index + 1 < item->strips) {
        prefetch_strip(item, strip_index + 1, tensor, cols);
    }
}

void attn_strip_start(attn_forward_item *item, int strip_index)
{
    void *rows[ATTN_MAX_STRIP];
    prefetch_next(item, strip_index, &item->problem->q, item->problem->d);
    const int lanes = strip_rows(item, strip_index, &item->problem->q, rows);
    for (int lane = lanes; lane < item->table->strip; lane++) {
        rows[lane] = NULL;
    }
    const int64_t first = strip_first(item, strip_index);
    item->rows[strip_index] =
        attn_score_tile_rows(&item->scores, first, first + lanes, item->table->key_step);
    attn_strip_reset(item, strip_index);
    if (!strip_sees_nothing(item, strip_index)) {
        item->table->pack_q(strip_qt(item, strip_index), (const void *const *)rows,
                            item->problem->q.stride[3], item->problem->q.dtype, item->problem->d,
                            item->plan->scores.factor, lanes);
    }
}

/* ---- results --------------------------------------------------------------------------------- */

static double row_sink(const attn_forward_item *item, lane_row row)
{
    const attn_tensor *sinks = &item->problem->sinks;
    if (!attn_sequence_has_sink(item->problem, &item->seq)) {
        return -INFINITY;
    }
    return attn_element_to_f64(attn_at_broadcast(sinks, item->seq.index, row.head, 0, 0),
                               sinks->dtype);
}

/* Writes the LSE and the maximum of a row. lse: the logarithm without the sink. */
static void write_row(const attn_forward_item *item, lane_row row, double lse, double sink,
                      double row_max)
{
    const attn_problem *problem = item->problem;
    const int64_t i = item->seq.q_first + row.query;
    if (problem->lse.data) {
        const double nan = sink == -INFINITY ? 0 : sink - sink; /* for a sink that is not finite */
        attn_element_from_f64(attn_at(&problem->lse, item->seq.tensor, i, row.head, 0),
                              problem->lse.dtype, attn_segment_join(lse, 0, sink, 0).lse + nan);
    }
    if (problem->row_max.data) {
        const bool nan =
            isnan(lse) && row_max != INFINITY; /* the kernels' maxima pass over a NaN */
        /* 0 is added since the sign of a maximum of zeros depends on their order */
        attn_element_from_f64(attn_at(&problem->row_max, item->seq.tensor, i, row.head, 0),
                              problem->row_max.dtype, nan ? lse : row_max * strip_unit(item) + 0.0);
    }
}

/* O of a lane whose sink is far above its scores. */
static void divide_far(const attn_forward_item *item, char *ot, int lane, attn_row_end end)
{
    for (int64_t at = lane; at < item->problem->dv * item->table->strip; at += item->table->strip) {
        set_real(item->table, ot, at, get_real(item->table, ot, at) / end.far / end.divisor);
    }
}

static void store_strip(const attn_forward_item *item, int strip_index, const attn_tensor *o,
                        const void *divisor)
{
    void *rows[ATTN_MAX_STRIP];
    const int lanes = strip_rows(item, strip_index, o, rows);
    item->table->store(rows, o->stride[3], o->dtype, strip_sum(item, strip_index, 0),
                       item->problem->dv, divisor, lanes);
}

/* Computes LSE and row maximum. Writes the divisor of O, as sinks make it, in place of alpha. */
static void finish_rows(const attn_forward_item *item, int strip_index, const attn_running *state)
{
    const int lanes = strip_lanes(item, strip_index);
    const bool nodes = item->sums[strip_index].nodes > 0;
    const void *top = nodes || state->top == NULL ? strip_row_max(item, strip_index) : state->top;
    attn_node running, *sums = nodes ? attn_strip_node(item, strip_index, 0) : &running;
    lane_row row = attn_score_row(&item->scores, strip_first(item, strip_index));
    if (!nodes) {
        item->table->logs(running.lse, running.rest, state, strip_unit(item), lanes);
    }
    for (int lane = 0; lane < lanes; lane++, row = attn_score_next(&item->scores, row)) {
        const double sink = row_sink(item, row);
        const attn_row_end end = attn_sink_divisor(sums->lse[lane], sums->rest[lane], sink);
        write_row(item, row, sums->lse[lane], sink, get_real(item->table, top, lane));
        if (end.far > 0) {
            divide_far(item, strip_sum(item, strip_index, 0), lane, end);
        }
        set_real(item->table, state->alpha, lane, end.far > 0 ? 1 : end.divisor);
    }
}

void attn_strip_prefetch(const attn_forward_item *item, int strip_index)
{
    prefetch_strip(item, strip_index, &item->problem->o_f32, item->problem->dv);
}

/* Lists the strip's rows of O in `rows`. */
static attn_row_sums row_sums(const attn_forward_item *item, int strip_index, void **rows)
{
    const attn_tensor *o = &item->problem->o;
    strip_rows(item, strip_index, o, rows);
    return (attn_row_sums){.sum = strip_ot(item, strip_index),
                           .o = rows,
                           .divisor = strip_state(item, strip_index).l,
                           .o_dtype = o->dtype,
                           .dv = item->problem->dv};
}

void attn_strip_add_rows(attn_forward_item *item, int strip_index, int64_t at, int64_t n,
                         const void *alpha, bool last)
{
    void *rows[ATTN_MAX_STRIP];
    attn_row_sums to = row_sums(item, strip_index, rows);
    to.alpha = alpha;
    to.o = last ? to.o : NULL;
    const bool stored =
        item->table->pv_rows(&to, item->v, at, item->prob, n, strip_lanes(item, strip_index));
    item->sums[strip_index].form = stored ? ATTN_SUMS_STORED : ATTN_SUMS_ROWS;
}

bool attn_strip_is_finite(attn_forward_item *item, int strip_index)
{
    attn_sums *sums = &item->sums[strip_index];
    const int lanes = strip_lanes(item, strip_index);
    if (sums->form == ATTN_SUMS_COLUMNS) {
        return item->table->finite(strip_sum(item, strip_index, 0), item->problem->dv, lanes);
    }
    if (sums->form == ATTN_SUMS_ROWS) {
        void *rows[ATTN_MAX_STRIP];
        const attn_row_sums to = row_sums(item, strip_index, rows);
        const bool finite = item->table->end_rows(&to, lanes);
        sums->form = finite ? ATTN_SUMS_STORED : ATTN_SUMS_ROWS;
    }
    return sums->form == ATTN_SUMS_STORED;
}

void attn_strip_finish(const attn_forward_item *item, int strip_index)
{
    const attn_running state = strip_state(item, strip_index);
    const void *divisor = item->sums[strip_index].nodes > 0 ? NULL : state.l;
    if (item->problem->sinks.data || item->problem->lse.data || item->problem->row_max.data) {
        finish_rows(item, strip_index, &state);
        divisor = item->problem->sinks.data ? state.alpha : divisor;
    }
    if (item->sums[strip_index].form == ATTN_SUMS_COLUMNS) {
        prefetch_next(item, strip_index, &item->problem->o, item->problem->dv);
        store_strip(item, strip_index, &item->problem->o, divisor);
    }
    if (item->problem->o_f32.data) {
        store_strip(item, strip_index, &item->problem->o_f32, divisor);
    }
}
