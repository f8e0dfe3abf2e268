/*
 * sums.h: the sums of an item over segments (core/segment.h): dQ of each row block over segments of
 * keys, dK and dV of a set of keys over segments of rows. A complete sum waits on a stack until its
 * neighbour in the tree is complete. Not here: products (backward.c), and results (store.c).
 */
#ifndef ATTN_CPU_GRAD_SUMS_H
#define ATTN_CPU_GRAD_SUMS_H

#include "cpu/backward/tile.h"

/* Empty the stacks: of all row blocks of the item's rows, or of the set of keys at hand. */
void attn_grad_dq_begin(attn_grad_item *item, attn_interval rows);
void attn_grad_dkv_begin(attn_grad_item *item);

/* Runs before products of the row block at hand with keys of a segment, which are added to
 * item->dq_block. */
void attn_grad_dq_enter(attn_grad_item *item, int64_t item_row, int64_t segment);

/* Runs before products with rows of a segment, which are added to item->dk and item->dv. */
void attn_grad_dkv_enter(attn_grad_item *item, int64_t segment);

/* Run after all products: item->dq_block, of the row block that begins at `row`, and item->dk and
 * item->dv, of the set of keys, are sums over all segments. */
void attn_grad_dq_leave(attn_grad_item *item, attn_interval rows, int64_t row);
void attn_grad_dkv_leave(attn_grad_item *item);

#endif
