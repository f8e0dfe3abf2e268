/*
 * nodes.c: see nodes.h.
 */
#include "cpu/forward/nodes.h"
#include "core/segment.h"
#include <math.h>
#include <string.h>

attn_node *attn_strip_node(const attn_forward_item *item, int strip_index, int i)
{
    return (attn_node *)(void *)item->node + (int64_t)strip_index * item->plan->node_depth + i;
}

static attn_part node_part(const attn_forward_item *item, int strip_index, int i)
{
    attn_node *node = attn_strip_node(item, strip_index, i);
    return (attn_part){.lse = node->lse, .rest = node->rest, .o = strip_sum(item, strip_index, i)};
}

/* Joins nodes whose parent ends at or before segment `next`. */
static void settle(const attn_forward_item *item, int strip_index, int64_t next)
{
    for (attn_sums *sums = &item->sums[strip_index]; sums->nodes > 1; sums->nodes--) {
        attn_node *below = attn_strip_node(item, strip_index, sums->nodes - 2),
                  *top = attn_strip_node(item, strip_index, sums->nodes - 1);
        if (attn_segment_node_end(below->segment, top->segment) > next) {
            return;
        }
        const attn_part node = node_part(item, strip_index, sums->nodes - 2),
                        part = node_part(item, strip_index, sums->nodes - 1);
        item->table->join(&node, &part, item->problem->dv, strip_lanes(item, strip_index));
        below->segment = top->segment;
    }
}

/* Keeps the largest scores of a segment, whose state is about to be reset. Tables that lag keep
 * them in an array of their own. */
static void note_row_max(const attn_forward_item *item, int strip_index, const attn_running *state)
{
    void *row_max = strip_row_max(item, strip_index);
    for (int lane = 0; lane < item->table->strip; lane++) {
        const double m = get_real(item->table, state->m, lane);
        if (m > get_real(item->table, row_max, lane)) {
            set_real(item->table, row_max, lane, m);
        }
    }
}

/* Ends the segment that OT and the running state hold. It becomes a node, or is joined to the last
 * node if the two are neighbours in the tree. */
static void close_segment(const attn_forward_item *item, int strip_index)
{
    attn_sums *sums = &item->sums[strip_index];
    const attn_running state = strip_state(item, strip_index);
    const int lanes = strip_lanes(item, strip_index);
    double lse[ATTN_MAX_STRIP], rest[ATTN_MAX_STRIP];
    const attn_part part = {lse, rest, strip_ot(item, strip_index), state.l};
    item->table->logs(lse, rest, &state, strip_unit(item), lanes);
    if (item->problem->row_max.data && !item->table->lags) {
        note_row_max(item, strip_index, &state);
    }
    attn_node *top = sums->nodes > 0 ? attn_strip_node(item, strip_index, sums->nodes - 1) : NULL;
    if (top && attn_segment_node_end(top->segment, sums->segment) <= sums->segment + 1) {
        const attn_part node = node_part(item, strip_index, sums->nodes - 1);
        item->table->join(&node, &part, item->problem->dv, lanes);
    } else {
        const attn_part node = node_part(item, strip_index, sums->nodes);
        top = attn_strip_node(item, strip_index, sums->nodes++);
        item->table->copy(&node, &part, item->problem->dv, lanes);
    }
    top->segment = sums->segment;
}

void attn_strip_begin(const attn_forward_item *item, int strip_index)
{
    const attn_running state = strip_state(item, strip_index);
    fill_reals(item->table, state.m, item->table->strip, -INFINITY);
    fill_reals(item->table, state.l, item->table->strip, 0);
}

bool attn_strip_enter(attn_forward_item *item, int strip_index, int64_t segment)
{
    attn_sums *sums = &item->sums[strip_index];
    if (sums->segment == segment) {
        return false;
    }
    if (sums->segment >= 0) {
        close_segment(item, strip_index);
        settle(item, strip_index, segment);
        attn_strip_begin(item, strip_index);
    }
    sums->segment = segment;
    return true;
}

void attn_strip_leave(attn_forward_item *item, int strip_index)
{
    const attn_sums *sums = &item->sums[strip_index];
    if (sums->segment >= 0 && (sums->nodes > 0 || item->problem->sinks.data)) {
        close_segment(item, strip_index);
    }
    settle(item, strip_index, INT64_MAX);
}

void attn_strip_save(attn_forward_item *item, int strip_index, attn_piece *piece)
{
    const attn_ukernel *table = item->table;
    piece->seen = item->sums[strip_index].segment >= 0;
    if (!piece->seen) {
        return;
    }
    close_segment(item, strip_index);
    settle(item, strip_index, INT64_MAX);
    const void *row_max = strip_row_max(item, strip_index);
    for (int lane = 0; lane < table->strip; lane++) {
        piece->row_max[lane] = get_real(table, row_max, lane);
    }
    piece->node = *attn_strip_node(item, strip_index, 0);
    memcpy(attn_piece_o(piece), strip_sum(item, strip_index, 0), item->plan->scratch.ot_bytes);
}

/* The largest scores of a piece. */
static void add_row_max(const attn_forward_item *item, int strip_index, const attn_piece *piece)
{
    void *row_max = strip_row_max(item, strip_index);
    for (int lane = 0; lane < item->table->strip; lane++) {
        const double before = get_real(item->table, row_max, lane);
        set_real(item->table, row_max, lane, fmax(before, piece->row_max[lane]));
    }
}

void attn_strip_add(attn_forward_item *item, int strip_index, attn_piece *piece, int64_t next)
{
    attn_sums *sums = &item->sums[strip_index];
    attn_node *top = sums->nodes > 0 ? attn_strip_node(item, strip_index, sums->nodes - 1) : NULL;
    if (!piece->seen) {
        settle(item, strip_index, next);
        return;
    }
    if (top && attn_segment_node_end(top->segment, piece->node.segment) <= next) {
        const attn_part node = node_part(item, strip_index, sums->nodes - 1),
                        part = {piece->node.lse, piece->node.rest, attn_piece_o(piece), NULL};
        item->table->join(&node, &part, item->problem->dv, strip_lanes(item, strip_index));
        top->segment = piece->node.segment;
    } else {
        *attn_strip_node(item, strip_index, sums->nodes) = piece->node;
        memcpy(strip_sum(item, strip_index, sums->nodes), attn_piece_o(piece),
               item->plan->scratch.ot_bytes);
        sums->nodes++;
    }
    add_row_max(item, strip_index, piece);
    settle(item, strip_index, next);
}
