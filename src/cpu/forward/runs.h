/*
 * runs.h: the fast way of decoding, for an item of few query rows whose scores are plain products.
 * Kernels then read the rows of K and V where they lie in the caller's memory, and one call of
 * run_rows (table.h) does the scores, the softmax and V^T P of many keys. Nothing is packed. Not
 * here: items that lack what this takes; they go tile by tile (forward.c).
 */
#ifndef ATTN_CPU_FORWARD_RUNS_H
#define ATTN_CPU_FORWARD_RUNS_H

#include "cpu/forward/item.h"

/* True if an item of few rows can go this way: its options, and the form of its K and V. */
bool attn_runs_fit(const attn_forward_item *item);

/* Stands in for attn_walk_next. Where item->runs is set, sums all keys of the walk that run_rows
 * takes: whole blocks that no mask cuts. Then goes to the next tile, which is the caller's. False
 * behind the last. */
bool attn_runs_then_next(attn_forward_item *item, attn_walk *walk);

#endif
