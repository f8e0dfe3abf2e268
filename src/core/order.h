/*
 * order.h: a list that can only be walked, in ascending order and in memory of a fixed size. Each
 * walk over the list brings the next ATTN_ORDER_SIZE stretches:
 *
 *     attn_order order;
 *     attn_order_begin(&order);
 *     do {
 *         for (every stretch of the list) attn_order_offer(&order, stretch);
 *         attn_order_sort(&order);
 *         for (int i = 0; i < order.count; i++) ... order.held[i] ...
 *     } while (attn_order_next(&order));
 */
#ifndef ATTN_CORE_ORDER_H
#define ATTN_CORE_ORDER_H

#include <stdbool.h>
#include <stdint.h>

enum { ATTN_ORDER_SIZE = 1024 };

/* Numbers low .. end-1, for example addresses. */
typedef struct attn_stretch {
    uint64_t low, end;
    int64_t number; /* which one of the list; also the order of those with the same low */
} attn_stretch;

typedef struct attn_order {
    int count;
    bool later; /* walks before have brought all up to `last` */
    attn_stretch last;
    /* a heap with the last in the order first; sorted: in order */
    attn_stretch held[ATTN_ORDER_SIZE];
} attn_order;

void attn_order_begin(attn_order *order);

/* Holds a stretch if it is among the first ones that no walk has brought yet. */
void attn_order_offer(attn_order *order, attn_stretch stretch);

/* Puts the stretches of a walk in order. */
void attn_order_sort(attn_order *order);

/* Goes on behind the stretches of a walk; false if there can be no more. */
bool attn_order_next(attn_order *order);

#endif
