/*
 * backward.h: the backward pass on the CPU, as src/api sees it: plan (plan.h), then run; and
 * its loops besides the passes.
 */
#ifndef ATTN_CPU_BACKWARD_H
#define ATTN_CPU_BACKWARD_H

#include "cpu/backward/plan.h"
#include "cpu/machine/tasks.h"

/* Runs the parallel loop that leaves lse and delta of all rows in the workspace. */
void attn_grad_delta(const attn_grad_plan *plan, const attn_gradients *grads,
                     const attn_executor *executor, char *workspace);

/* Runs the parallel loops for the gradients of a shared bias and of sinks, once lse and delta of
 * all rows are there. */
void attn_grad_shared_bias(const attn_grad_plan *plan, const attn_gradients *grads,
                           const attn_executor *executor, char *workspace);
void attn_grad_sinks(const attn_grad_plan *plan, const attn_gradients *grads,
                     const attn_executor *executor, char *workspace);

/* Runs the plan. workspace: at least workspace_bytes, aligned to 64. Cannot fail. */
void attn_cpu_backward(const attn_grad_plan *plan, const attn_gradients *grads,
                       const attn_executor *executor, void *workspace);

#endif
