/*
 * blocks.h: rows of an item of the forward pass: those that the caches hold, cut so that all
 * threads have work. No bits of a result depend on them. Pure. Not here: items in pieces of their
 * keys, tasks (plan.c).
 */
#ifndef ATTN_CPU_FORWARD_BLOCKS_H
#define ATTN_CPU_FORWARD_BLOCKS_H

#include "cpu/forward/plan.h"

/* Queries of the longest sequence. */
int64_t attn_longest_sequence(const attn_problem *problem);

/* Bytes of the L2 cache. */
int64_t attn_l2_bytes(const attn_machine *machine);

/* Strips that fit in half of it. */
int64_t attn_strips_in_cache(const attn_cpu_plan *plan, const attn_machine *machine);

/* Strips of an item, at most. */
int64_t attn_strips_per_item(const attn_cpu_plan *plan, const attn_problem *problem,
                             const attn_machine *machine);

/* Estimated ns of an item. */
double attn_item_time(const attn_cpu_plan *plan, const attn_problem *problem, int64_t block_rows);

/* Rows of an item, for plan->strips. */
int64_t attn_item_rows(const attn_cpu_plan *plan, const attn_problem *problem, int32_t threads,
                       int64_t segments);

#endif
