/*
 * forward.h: the forward pass on the CPU, as src/api sees it: plan (plan.h), then run.
 */
#ifndef ATTN_CPU_FORWARD_H
#define ATTN_CPU_FORWARD_H

#include "cpu/forward/item.h"

/* Runs the plan. workspace: at least workspace_bytes, aligned to 64. Cannot fail. */
void attn_cpu_forward(const attn_cpu_plan *plan, const attn_problem *problem,
                      const attn_executor *executor, void *workspace);

/* Of an item: sets up its strips, sums its keys, and, after attn_strip_leave of each strip, writes
 * its rows; strips with non-finite results are computed again, carefully. */
void attn_item_start(attn_forward_item *item);
void attn_item_sum(attn_forward_item *item);
void attn_item_finish(attn_forward_item *item);

#endif
