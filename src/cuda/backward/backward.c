/*
 * backward.c: the backward pass on a GPU, host side: plan, launches on the caller's stream.
 */
#include "cuda/backward/backward.h"
#include "core/error.h"
#include "core/overlap.h"
#include <stdio.h>

/* In the current context. */
static attn_status enqueue(const attn_cuda *cuda, attn_cuda_grad_plan *plan, void *stream)
{
    for (int i = 0; i < plan->launches; i++) {
        const attn_cuda_grad_launch *launch = &plan->launch[i];
        const uint32_t grid[3] = {launch->grid, 1, 1};
        double *const partial = plan->params.sum.partial;
        plan->params.items = launch->items, plan->params.pieces = launch->pieces;
        plan->params.sum = launch->sum, plan->params.sum.partial = partial;
        TRY(attn_cuda_launch(cuda, launch->kernel, grid, &plan->params, stream));
    }
    return ATTN_OK;
}

attn_status attn_cuda_backward(const attn_cuda *cuda, const attn_gradients *grads,
                               const attn_call *call)
{
    attn_cuda_grad_plan plan;
    bool borrowed;
    TRY(attn_cuda_grad_plan_make(&plan, cuda, grads));
    if (call->workspace == NULL || call->workspace_bytes < plan.workspace_bytes) {
        return attn_fail(ATTN_ERR_WORKSPACE,
                         "workspace_bytes = %llu, %llu are needed: a GPU's calls do not allocate",
                         (unsigned long long)(call->workspace ? call->workspace_bytes : 0),
                         (unsigned long long)plan.workspace_bytes);
    }
    TRY(attn_gradients_overlaps(grads, call->workspace, plan.workspace_bytes));
    char *const workspace = attn_align_up(call->workspace);
    plan.params.lse = workspace + plan.lse_offset;
    plan.params.delta = workspace + plan.delta_offset;
    plan.params.sum.partial = (double *)(void *)(workspace + plan.partial_offset);
    TRY(attn_cuda_enter(cuda, &borrowed));
    attn_status status = enqueue(cuda, &plan, call->stream);
    attn_cuda_leave(cuda, borrowed);
    return status;
}

/* Classes of result bits behind those of the forward pass. */
enum { FIRST_BITS = 1 << 16 };

attn_status attn_cuda_plan_backward(const attn_cuda *cuda, const attn_gradients *grads,
                                    attn_plan *out)
{
    attn_cuda_grad_plan plan;
    TRY(attn_cuda_grad_plan_make(&plan, cuda, grads));
    const attn_cuda_kernel *kernel = &attn_cuda_kernels[plan.kernel];
    out->kernel = kernel->name;
    (void)snprintf(out->why, sizeof out->why,
                   "not on tensor cores: gradients have no kernels there");
    out->strip = kernel->rows;
    out->rows_per_item = kernel->rows;
    out->key_block = kernel->keys;
    out->items = plan.items;
    out->workspace_bytes = plan.workspace_bytes;
    out->bits = FIRST_BITS + plan.kernel;
    out->sum_bits = grads->problem.q.dtype == ATTN_F64 ? 64 : 32;
    attn_cuda_grad_costs(&plan, out);
    return ATTN_OK;
}
