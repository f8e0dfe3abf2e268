/*
 * backward.c: the backward pass on a GPU, host side: plan, launches on the caller's stream.
 */
#include "cuda/backward/backward.h"
#include "core/error.h"
#include "core/overlap.h"
#include "cuda/shape.h"
#include "cuda/starts/starts.h"
#include <stdio.h>

static attn_status make_maps(const attn_cuda *cuda, attn_cuda_grad_plan *plan)
{
    const attn_driver *driver = cuda->driver;
    attn_cuda_backward_params *params = &plan->params;
    const attn_problem *problem = &params->grads.problem;
    attn_tensor q = problem->q, d_o = params->grads.d_o;
    if (plan->split) {
        const int32_t d = attn_cuda_kernels[plan->kernel].d;
        q = attn_cuda_split_parts(&q, params->q_parts, d);
        d_o = attn_cuda_split_parts(&d_o, params->d_o_parts, d);
    } else {
        TRY(attn_cuda_map_rows(driver, &params->k_map, &problem->k, ATTN_GRAD_BOX));
        TRY(attn_cuda_map_rows(driver, &params->v_map, &problem->v, ATTN_GRAD_BOX));
    }
    const attn_cuda_family family = attn_cuda_kernels[plan->kernel].family;
    if (family == ATTN_CUDA_BACKWARD_SM90_MASK || family == ATTN_CUDA_BACKWARD_SM90_BIAS) {
        attn_tensor table;
        (void)attn_cuda_grad_table(problem, &table);
        params->table_heads = table.shape[1] > 1, params->table_batches = table.shape[0] > 1;
        const attn_cuda_axis axes[3] = {{table.shape[2], table.stride[2], ATTN_GRAD_BOX},
                                        {table.shape[1], table.stride[1], 1},
                                        {table.shape[0], table.stride[0], 1}};
        TRY(attn_cuda_map(driver, &params->table_map, &table, axes, 3));
    }
    if (plan->rounds) {
        TRY(attn_cuda_map_rows(driver, &params->dq_map, &params->grads.dq, 16));
        TRY(attn_cuda_map_rows(driver, &params->dk_map, &params->grads.dk, 16));
        TRY(attn_cuda_map_rows(driver, &params->dv_map, &params->grads.dv, 16));
    }
    TRY(attn_cuda_map_rows(driver, &params->q_map, &q, ATTN_GRAD_BOX));
    return attn_cuda_map_rows(driver, &params->d_o_map, &d_o, ATTN_GRAD_BOX);
}

/* Makes the maps and enqueues the launches. In the current context. */
static attn_status enqueue(const attn_cuda *cuda, attn_cuda_grad_plan *plan,
                           unsigned char *workspace, void *stream)
{
    if (plan->fast && !plan->single) {
        TRY(make_maps(cuda, plan));
    }
    TRY(attn_cuda_starts_order(cuda, &plan->params.grads.problem, workspace + plan->starts_offset,
                               stream));
    if ((plan->fast || plan->mma) && plan->clear_words > 0) {
        const uintptr_t from = (uintptr_t)(workspace + plan->bad_keys_offset);
        TRY(attn_driver_check(cuda->driver,
                              cuda->driver->set_words(from, 0, plan->clear_words, stream),
                              "clearing notes and turns"));
    }
    for (int i = 0; i < plan->launches; i++) {
        const attn_cuda_grad_launch *launch = &plan->launch[i];
        const uint32_t grid[3] = {launch->grid, launch->layers > 0 ? launch->layers : 1, 1};
        double *const partial = plan->params.sum.partial;
        plan->params.items = launch->items, plan->params.pieces = launch->pieces;
        plan->params.sum = launch->sum, plan->params.sum.partial = partial;
        TRY((launch->early ? attn_cuda_launch_early : attn_cuda_launch)(cuda, launch->kernel, grid,
                                                                        &plan->params, stream));
    }
    return ATTN_OK;
}

attn_status attn_cuda_backward(const attn_cuda *cuda, const attn_gradients *grads,
                               const attn_call *call)
{
    attn_cuda_grad_plan plan;
    bool borrowed;
    TRY(attn_cuda_grad_plan_make(&plan, cuda, grads));
    TRY(attn_gradients_overlaps(grads, call->workspace,
                                attn_handed_in(call, plan.workspace_bytes)));
    if (call->workspace == NULL || call->workspace_bytes < plan.workspace_bytes) {
        return attn_fail(ATTN_ERR_WORKSPACE,
                         "workspace_bytes = %llu, %llu are needed: a GPU's calls do not allocate",
                         (unsigned long long)(call->workspace ? call->workspace_bytes : 0),
                         (unsigned long long)plan.workspace_bytes);
    }
    unsigned char *const workspace = attn_align_up(call->workspace);
    plan.params.lse = workspace + plan.lse_offset;
    plan.params.delta = workspace + plan.delta_offset;
    plan.params.sum.partial = (double *)(void *)(workspace + plan.partial_offset);
    plan.params.ticket = (uint32_t *)(void *)(workspace + plan.turns_offset);
    plan.params.turns = plan.params.ticket + 1;
    plan.params.key_turns = (uint32_t *)(void *)(workspace + plan.key_turns_offset);
    plan.params.key_sums = (float *)(void *)(workspace + plan.key_sums_offset);
    if (plan.peaks_offset > 0) {
        plan.params.peaks = (uint32_t *)(void *)(workspace + plan.peaks_offset);
        plan.params.capped =
            plan.capped_offset > 0 ? (uint32_t *)(void *)(workspace + plan.capped_offset) : NULL;
        plan.params.reach = (float *)(void *)(workspace + plan.reach_offset);
    }
    plan.params.next_chunk = (uint32_t *)(void *)(workspace + plan.next_chunk_offset);
    plan.params.clear = (uint32_t *)(void *)(workspace + plan.bad_keys_offset);
    plan.params.bad_keys = workspace + plan.bad_keys_offset;
    plan.params.bad_rows = workspace + plan.bad_rows_offset;
    plan.params.sums = (float *)(void *)(workspace + plan.sums_offset);
    plan.params.q_parts = workspace + plan.q_parts_offset;
    plan.params.d_o_parts = workspace + plan.d_o_parts_offset;
    TRY(attn_cuda_enter(cuda, &borrowed));
    attn_status status = enqueue(cuda, &plan, workspace, call->stream);
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
    const int runs =
        plan.rounds ? attn_cuda_grad_ordered(&grads->problem, ATTN_CUDA_GRAD_ROUNDED) : plan.kernel;
    out->kernel = attn_cuda_kernels[runs].name;
    (void)snprintf(out->why, sizeof out->why, "%s", plan.why);
    out->strip = kernel->rows;
    out->rows_per_item = kernel->rows;
    out->key_block = kernel->keys;
    out->items = plan.items;
    out->workspace_bytes = plan.workspace_bytes;
    out->bits = FIRST_BITS + plan.kernel;
    out->sum_bits = grads->problem.q.dtype == ATTN_F64 ? 64 : 32;
    out->tile_products = !plan.fast && !plan.mma ? 0 : kernel->dtype == ATTN_F32 ? 6 : 1;
    out->weight_loss = out->tile_products != 1 ? 0 : kernel->dtype == ATTN_F16 ? 0x1p-11 : 0x1p-8;
    attn_cuda_grad_costs(&plan, out);
    return ATTN_OK;
}
