/*
 * runs.h: keys by their rows where these lie, for an item of few rows with plain scores: its walk
 * goes through whole blocks of them at once (run_rows in table.h).
 */
#ifndef ATTN_CPU_FORWARD_RUNS_H
#define ATTN_CPU_FORWARD_RUNS_H

#include "cpu/forward/item.h"

/* True if the item, of few rows, has such keys. */
bool attn_runs_fit(const attn_forward_item *item);

/* Sums the walk's next keys as long as they are such, if item->runs; then goes to the next tile.
 * False behind the last. */
bool attn_runs_then_next(attn_forward_item *item, attn_walk *walk);

#endif
