/*
 * nodes.c: see nodes.h.
 */
#include "cpu/forward/nodes.h"
#include "core/segment.h"

attn_node *attn_strip_node(const attn_item_run *r, int strip, int i)
{
    const int64_t at = (int64_t)strip * r->plan->node_depth + i;
    return (attn_node *)(void *)(r->node + at * (int64_t)r->plan->scratch.node_bytes);
}

static char *node_sum(attn_node *node)
{
    return (char *)node + ((sizeof *node + 63) & ~(size_t)63);
}

char *attn_strip_sum(const attn_item_run *r, int strip)
{
    return r->sums[strip].nodes > 0 ? node_sum(attn_strip_node(r, strip, 0)) : strip_ot(r, strip);
}

static attn_part node_part(attn_node *node)
{
    return (attn_part){.lse = node->lse, .rest = node->rest, .o = node_sum(node)};
}

/* Joins nodes whose parent ends at or before segment `next`. */
static void settle(const attn_item_run *r, int strip, int64_t next)
{
    for (attn_sums *sums = &r->sums[strip]; sums->nodes > 1; sums->nodes--) {
        attn_node *below = attn_strip_node(r, strip, sums->nodes - 2),
                  *top = attn_strip_node(r, strip, sums->nodes - 1);
        if (attn_segment_node_end(below->segment, top->segment) > next) {
            return;
        }
        const attn_part node = node_part(below), part = node_part(top);
        r->uk->join(&node, &part, r->p->dv, strip_lanes(r, strip));
        below->segment = top->segment;
    }
}

/* The largest scores of the segment, of tables that keep no other record of them. */
static void note_row_max(const attn_item_run *r, int strip, const attn_running *state)
{
    void *row_max = strip_row_max(r, strip);
    for (int lane = 0; lane < r->uk->strip; lane++) {
        const double m = get_real(r->uk, state->m, lane);
        if (m > get_real(r->uk, row_max, lane)) {
            set_real(r->uk, row_max, lane, m);
        }
    }
}

/* The segment that OT and the running state hold, as a node or a part of the last one. */
static void close_segment(const attn_item_run *r, int strip)
{
    attn_sums *sums = &r->sums[strip];
    const attn_running state = strip_state(r, strip);
    const int lanes = strip_lanes(r, strip);
    double lse[ATTN_MAX_STRIP], rest[ATTN_MAX_STRIP];
    const attn_part part = {lse, rest, strip_ot(r, strip), state.l};
    r->uk->logs(lse, rest, &state, strip_unit(r), lanes);
    if (r->p->row_max.data && !r->uk->lags) {
        note_row_max(r, strip, &state);
    }
    attn_node *top = sums->nodes > 0 ? attn_strip_node(r, strip, sums->nodes - 1) : NULL;
    if (top && attn_segment_node_end(top->segment, sums->segment) <= sums->segment + 1) {
        const attn_part node = node_part(top);
        r->uk->join(&node, &part, r->p->dv, lanes);
    } else {
        top = attn_strip_node(r, strip, sums->nodes++);
        const attn_part node = node_part(top);
        r->uk->copy(&node, &part, r->p->dv, lanes);
    }
    top->segment = sums->segment;
}

bool attn_strip_enter(attn_item_run *r, int strip, int64_t segment)
{
    attn_sums *sums = &r->sums[strip];
    if (sums->segment == segment) {
        return false;
    }
    if (sums->segment >= 0) {
        close_segment(r, strip);
        settle(r, strip, segment);
        attn_strip_begin(r, strip);
    }
    sums->segment = segment;
    return true;
}

void attn_strip_leave(attn_item_run *r, int strip)
{
    if (r->sums[strip].nodes > 0 || (r->sums[strip].segment >= 0 && r->p->sinks.data)) {
        close_segment(r, strip);
        settle(r, strip, INT64_MAX);
    }
}
