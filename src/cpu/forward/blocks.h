/*
 * blocks.h: the number of query rows in an item of the forward pass. More rows share the packing of
 * K and V. Fewer fit the caches, and give each thread a few items. No bit of a result depends on
 * the choice. Pure. Not here: items in pieces of their keys, items to tasks (plan.c).
 */
#ifndef ATTN_CPU_FORWARD_BLOCKS_H
#define ATTN_CPU_FORWARD_BLOCKS_H

#include "cpu/forward/plan.h"

/* The number of queries of the longest sequence. */
int64_t attn_longest_sequence(const attn_problem *problem);

/* Bytes of the L2 cache, or a usual size where it is not known. */
int64_t attn_l2_bytes(const attn_machine *machine);

/* The number of strips whose Q and O fill half of the L2 cache, at least 1. */
int64_t attn_strips_in_cache(const attn_cpu_plan *plan, const attn_machine *machine);

/* The most strips of an item, from which plan->strips is set. */
int64_t attn_strips_per_item(const attn_cpu_plan *plan, const attn_problem *problem,
                             const attn_machine *machine);

/* The estimated time of an item of block_rows rows, in ns. */
double attn_item_time(const attn_cpu_plan *plan, const attn_problem *problem, int64_t block_rows);

/* The rows of an item. Cuts those of plan->strips strips further where threads would be idle. */
int64_t attn_item_rows(const attn_cpu_plan *plan, const attn_problem *problem, int32_t threads,
                       int64_t segments);

#endif
