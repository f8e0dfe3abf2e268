/*
 * order.c: see order.h.
 */
#include "core/order.h"

static bool is_before(const attn_stretch *a, const attn_stretch *b)
{
    return a->low < b->low || (a->low == b->low && a->number < b->number);
}

/* Moves the stretch at index `at` down until none below it in the heap lies behind it. */
static void sink(attn_stretch *heap, int count, int at)
{
    const attn_stretch moved = heap[at];
    for (int child = 2 * at + 1; child < count; child = 2 * at + 1) {
        child += child + 1 < count && is_before(&heap[child], &heap[child + 1]);
        if (!is_before(&moved, &heap[child])) {
            break;
        }
        heap[at] = heap[child], at = child;
    }
    heap[at] = moved;
}

void attn_order_begin(attn_order *order)
{
    order->count = 0;
    order->later = false;
}

void attn_order_offer(attn_order *order, attn_stretch stretch)
{
    attn_stretch *const heap = order->held;
    if (order->later && !is_before(&order->last, &stretch)) {
        return;
    }
    if (order->count < ATTN_ORDER_SIZE) {
        int at = order->count++;
        for (; at > 0 && is_before(&heap[(at - 1) / 2], &stretch); at = (at - 1) / 2) {
            heap[at] = heap[(at - 1) / 2];
        }
        heap[at] = stretch;
    } else if (is_before(&stretch, &heap[0])) {
        heap[0] = stretch;
        sink(heap, order->count, 0);
    }
}

void attn_order_sort(attn_order *order)
{
    for (int count = order->count; count > 1;) {
        const attn_stretch last = order->held[0];
        count--;
        order->held[0] = order->held[count];
        order->held[count] = last;
        sink(order->held, count, 0);
    }
}

bool attn_order_next(attn_order *order)
{
    const bool more = order->count == ATTN_ORDER_SIZE;
    if (more) {
        order->last = order->held[order->count - 1];
        order->later = true, order->count = 0;
    }
    return more;
}
