/*
 * sums.c: see sums.h. Whole sums are added, once a segment: zeros of keys that no row sees change
 * nothing.
 */
#include "cpu/backward/sums.h"
#include <string.h>

/* to[i] += from[i] for elements of type real. */
static void add_sum(const attn_ukernel *table, char *to, const char *from, uint64_t bytes)
{
    const uint64_t n = bytes / (uint64_t)table->real_size;
    if (table->real_size == 4) {
        float *restrict sum = (float *)(void *)to;
        const float *restrict part = (const float *)(const void *)from;
        for (uint64_t i = 0; i < n; i++) {
            sum[i] += part[i];
        }
    } else {
        double *restrict sum = (double *)(void *)to;
        const double *restrict part = (const double *)(const void *)from;
        for (uint64_t i = 0; i < n; i++) {
            sum[i] += part[i];
        }
    }
}

/* ---- dQ -------------------------------------------------------------------------------------- */

/* The stack and the sums of a row block, by the item's first row. */
typedef struct dq_place {
    attn_segment_stack *stack;
    char *sums; /* the oldest sum */
    uint64_t bytes;
} dq_place;

static dq_place dq_at(const attn_grad_item *item, int64_t first, int64_t rows)
{
    const uint64_t line = (uint64_t)(item->plan->d_pad * item->table->real_size);
    const int64_t strip = item->table->strip;
    return (dq_place){item->dq_stacks + first / item->grad->row_block,
                      item->dq_sums + (uint64_t)first * line,
                      (uint64_t)((rows + strip - 1) / strip * strip) * line};
}

/* The youngest sum. */
static char *dq_top(const attn_grad_item *item, const dq_place *place)
{
    return place->sums + (uint64_t)(place->stack->sums - 1) * item->plan->dq_bytes;
}

static void dq_settle(attn_grad_item *item, const dq_place *place, int64_t next)
{
    while (attn_segment_settle(place->stack, next)) {
        char *below = dq_top(item, place);
        add_sum(item->table, below, below + item->plan->dq_bytes, place->bytes);
    }
}

/* Begins the sum of a segment. */
static void dq_push(const attn_grad_item *item, const dq_place *place, int64_t segment)
{
    place->stack->last[place->stack->sums++] = segment;
    memset(dq_top(item, place), 0, (size_t)place->bytes);
}

void attn_grad_dq_begin(attn_grad_item *item, attn_interval rows)
{
    for (int64_t block = 0; block * item->grad->row_block < rows.hi - rows.lo; block++) {
        item->dq_stacks[block].sums = 0;
    }
}

void attn_grad_dq_enter(attn_grad_item *item, int64_t item_row, int64_t segment)
{
    const dq_place place =
        dq_at(item, item->first_row - item_row, item->last_row - item->first_row);
    if (!attn_segment_at_hand(place.stack, segment)) {
        dq_settle(item, &place, segment);
        dq_push(item, &place, segment);
    }
    item->dq_block = dq_top(item, &place);
}

void attn_grad_dq_leave(attn_grad_item *item, attn_interval rows, int64_t row)
{
    const int64_t end = min64(row + item->grad->row_block, rows.hi);
    const dq_place place = dq_at(item, row - rows.lo, end - row);
    dq_settle(item, &place, INT64_MAX);
    if (place.stack->sums == 0) {
        dq_push(item, &place, 0);
    }
    item->dq_block = place.sums;
}

/* ---- dK and dV ------------------------------------------------------------------------------- */

static void dkv_point(attn_grad_item *item)
{
    const uint64_t at = (uint64_t)(item->dkv_stack.sums - 1);
    item->dk = item->dk_sums + at * item->plan->dk_bytes;
    item->dv = item->dv_sums + at * item->plan->dv_bytes;
}

static void dkv_settle(attn_grad_item *item, int64_t next)
{
    while (attn_segment_settle(&item->dkv_stack, next)) {
        const char *dk = item->dk, *dv = item->dv;
        dkv_point(item);
        add_sum(item->table, item->dk, dk, item->plan->dk_bytes);
        add_sum(item->table, item->dv, dv, item->plan->dv_bytes);
    }
}

static void dkv_push(attn_grad_item *item, int64_t segment)
{
    item->dkv_stack.last[item->dkv_stack.sums++] = segment;
    dkv_point(item);
    memset(item->dk, 0, (size_t)item->plan->dk_bytes);
    memset(item->dv, 0, (size_t)item->plan->dv_bytes);
}

void attn_grad_dkv_begin(attn_grad_item *item)
{
    item->dkv_stack.sums = 0;
}

void attn_grad_dkv_enter(attn_grad_item *item, int64_t segment)
{
    if (!attn_segment_at_hand(&item->dkv_stack, segment)) {
        dkv_settle(item, segment);
        dkv_push(item, segment);
    }
}

void attn_grad_dkv_leave(attn_grad_item *item)
{
    dkv_settle(item, INT64_MAX);
    if (item->dkv_stack.sums == 0) {
        dkv_push(item, 0);
    }
}
