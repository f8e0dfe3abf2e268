/*
 * sums.h: the sums of an item over segments (core/segment.h): dQ of each row block over segments of
 * keys, dK and dV of a set of keys over segments of rows. A sum that is complete waits on a stack
 * until its neighbour in the tree is. Not here: what is added (backward.c), and results (store.c).
 */
#ifndef ATTN_CPU_GRAD_SUMS_H
#define ATTN_CPU_GRAD_SUMS_H

#include "cpu/backward/tile.h"

/* Empties the stacks of all row blocks of the item's rows; of the set of keys at hand. */
void attn_grad_dq_begin(attn_grad_item *item, attn_interval rows);
void attn_grad_dkv_begin(attn_grad_item *item);

/* Before products of the row block at hand with keys of a segment: item->dq_block is their sum. */
void attn_grad_dq_enter(attn_grad_item *item, int64_t item_row, int64_t segment);

/* Before products of rows of a segment: item->dk and item->dv are their sums. */
void attn_grad_dkv_enter(attn_grad_item *item, int64_t segment);

/* After all of them: the sums over all segments of the row block that begins at `row`, and of the
 * set of keys, as item->dq_block, item->dk and item->dv. */
void attn_grad_dq_leave(attn_grad_item *item, attn_interval rows, int64_t row);
void attn_grad_dkv_leave(attn_grad_item *item);

#endif
