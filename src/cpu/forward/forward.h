/*
 * forward.h: the forward pass on the CPU, as the front door sees it: plan (plan.h), then run.
 */
#ifndef ATTN_CPU_FORWARD_H
#define ATTN_CPU_FORWARD_H

#include "cpu/forward/plan.h"

/* Runs the plan. workspace: at least workspace_bytes, aligned to 64. Cannot fail. */
void attn_cpu_forward(const attn_cpu_plan *plan, const attn_problem *problem,
                      const attn_executor *executor, void *workspace);

#endif
