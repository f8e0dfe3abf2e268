/*
 * strip.c: see strip.h. Runs once per strip; its cost matters for short sequences only.
 */
#include "cpu/forward/strip.h"
#include "core/half.h"
#include "core/segment.h"
#include "core/softmax.h"
#include "cpu/forward/nodes.h"
#include <math.h>
#include <string.h>

void attn_strip_begin(const attn_item_run *r, int strip)
{
    const attn_running state = strip_state(r, strip);
    fill_reals(r->uk, state.m, r->uk->strip, -INFINITY);
    fill_reals(r->uk, state.l, r->uk->strip, 0);
}

void attn_strip_reset(const attn_item_run *r, int strip)
{
    attn_strip_begin(r, strip);
    r->sums[strip] = (attn_sums){.segment = -1};
    fill_reals(r->uk, strip_row_max(r, strip), r->uk->strip, -INFINITY);
    /* otherwise the first block's products are stored to OT, not added */
    if (strip_sees_nothing(r, strip) || r->p->mask.data) {
        memset(strip_ot(r, strip), 0, (size_t)(r->plan->dv_pad * r->uk->strip * r->uk->real_size));
    }
}

/* row[lane] = address of the strip's row in a tensor. Returns the number of rows. */
static int strip_rows(const attn_item_run *r, int strip, const attn_tensor *t, void **row)
{
    const int64_t size = attn_element_size(t->dtype), fold = r->scores.fold,
                  lanes = strip_lanes(r, strip);
    const lane_row first = attn_score_row(&r->scores, strip_first(r, strip));
    char *at = attn_at(t, r->seq.tensor, r->seq.q_first + first.query, r->scores.first_head, 0);
    int64_t head = first.head - r->scores.first_head, query = 0;
    for (int lane = 0; lane < lanes; lane++) {
        row[lane] = at + (query * t->stride[1] + head * t->stride[2]) * size;
        head++;
        if (head == fold) {
            head = 0, query++;
        }
    }
    return (int)lanes;
}

void attn_strip_start(attn_item_run *r, int strip)
{
    void *rows[ATTN_MAX_STRIP] = {NULL};
    const int lanes = strip_rows(r, strip, &r->p->q, rows);
    r->mask[strip] = attn_score_rows_mask(&r->scores, strip_first(r, strip), lanes);
    attn_strip_reset(r, strip);
    if (!strip_sees_nothing(r, strip)) {
        r->uk->pack_q(strip_qt(r, strip), (const void *const *)rows, r->p->q.stride[3],
                      r->p->q.dtype, r->p->d, r->plan->scores.factor, lanes);
    }
}

/* ---- results --------------------------------------------------------------------------------- */

static double row_sink(const attn_item_run *r, lane_row row)
{
    const attn_tensor *sinks = &r->p->sinks;
    if (!attn_sequence_has_sink(r->p, &r->seq)) {
        return -INFINITY;
    }
    return attn_element_to_f64(attn_at_broadcast(sinks, r->seq.index, row.head, 0, 0),
                               sinks->dtype);
}

/* Writes LSE, of which lse leaves out the sink, and the row maximum. */
static void write_row(const attn_item_run *r, lane_row row, double lse, double sink, double row_max)
{
    const attn_problem *p = r->p;
    const int64_t i = r->seq.q_first + row.query;
    if (p->lse.data) {
        const double nan = sink == -INFINITY ? 0 : sink - sink; /* for a sink that is not finite */
        attn_element_from_f64(attn_at(&p->lse, r->seq.tensor, i, row.head, 0), p->lse.dtype,
                              attn_segment_join(lse, 0, sink, 0).lse + nan);
    }
    if (p->row_max.data) {
        attn_element_from_f64(attn_at(&p->row_max, r->seq.tensor, i, row.head, 0), p->row_max.dtype,
                              row_max * strip_unit(r));
    }
}

/* O of a lane whose sink is far above its scores. */
static void divide_far(const attn_item_run *r, char *ot, int lane, attn_row_end end)
{
    for (int64_t at = lane; at < r->p->dv * r->uk->strip; at += r->uk->strip) {
        set_real(r->uk, ot, at, get_real(r->uk, ot, at) / end.far / end.divisor);
    }
}

static void store_strip(const attn_item_run *r, int strip, const attn_tensor *o,
                        const void *divisor)
{
    void *rows[ATTN_MAX_STRIP];
    const int lanes = strip_rows(r, strip, o, rows);
    r->uk->store(rows, o->stride[3], o->dtype, attn_strip_sum(r, strip), r->p->dv, divisor, lanes);
}

/* LSE and row maximum; by what a sink divides O, in place of alpha. */
static void finish_rows(const attn_item_run *r, int strip, const attn_running *state)
{
    const int lanes = strip_lanes(r, strip);
    const bool nodes = r->sums[strip].nodes > 0;
    const void *top = nodes || state->top == NULL ? strip_row_max(r, strip) : state->top;
    attn_node running, *sums = nodes ? attn_strip_node(r, strip, 0) : &running;
    lane_row row = attn_score_row(&r->scores, strip_first(r, strip));
    if (!nodes) {
        r->uk->logs(running.lse, running.rest, state, strip_unit(r), lanes);
    }
    for (int lane = 0; lane < lanes; lane++, row = attn_score_next(&r->scores, row)) {
        const double sink = row_sink(r, row);
        const attn_row_end end = attn_sink_divisor(sums->lse[lane], sums->rest[lane], sink);
        write_row(r, row, sums->lse[lane], sink, get_real(r->uk, top, lane));
        if (end.far > 0) {
            divide_far(r, attn_strip_sum(r, strip), lane, end);
        }
        set_real(r->uk, state->alpha, lane, end.far > 0 ? 1 : end.divisor);
    }
}

void attn_strip_finish(const attn_item_run *r, int strip)
{
    const attn_running state = strip_state(r, strip);
    const void *divisor = r->sums[strip].nodes > 0 ? NULL : state.l;
    if (r->p->sinks.data || r->p->lse.data || r->p->row_max.data) {
        finish_rows(r, strip, &state);
        divisor = r->p->sinks.data ? state.alpha : divisor;
    }
    store_strip(r, strip, &r->p->o, divisor);
    if (r->p->o_f32.data) {
        store_strip(r, strip, &r->p->o_f32, divisor);
    }
}
