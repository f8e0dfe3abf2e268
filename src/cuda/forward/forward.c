/*
 * forward.c: the forward pass on a GPU, host side: plan, tensor maps, launch on the caller's
 * stream.
 */
#include "cuda/forward/forward.h"
#include "core/code_types.h"
#include "core/error.h"
#include "core/overlap.h"
#include "cuda/append/append.h"
#include "cuda/forward/codes.h"
#include "cuda/mask/mask.h"
#include "cuda/merge/merge.h"
#include <stdio.h>

/* Makes a map of columns, `fold` heads, rows, groups of such heads, batches, with boxes of `piece`
 * rows of `fold` heads. */
static attn_status map_folded(const attn_driver *cu, attn_tensor_map *map,
                              const attn_tensor *tensor, const attn_cuda_schedule *schedule)
{
    const attn_cuda_axis axes[4] = {
        {schedule->fold, tensor->stride[2], schedule->fold},
        {tensor->shape[1], tensor->stride[1], schedule->piece},
        {tensor->shape[2] / schedule->fold, tensor->stride[2] * schedule->fold, 1},
        {tensor->shape[0], tensor->stride[0], 1}};
    return attn_cuda_map(cu, map, tensor, axes, 4);
}

/* Makes a map of columns of a chunk, 8 rows, chunks, eights of rows, heads, with boxes of `rows`
 * rows and all chunks. step: eights from a page to the next. */
static attn_status map_eights(const attn_driver *cu, attn_tensor_map *map,
                              const attn_tensor *tensor, int32_t step, int32_t rows)
{
    const int64_t chunks = tensor->shape[3] / 64,
                  eights = (tensor->shape[0] - 1) * step + tensor->shape[1] / 8;
    const attn_cuda_axis axes[4] = {{8, tensor->stride[1], 8},
                                    {chunks, 64, (int32_t)chunks},
                                    {eights, 8 * tensor->stride[1], rows / 8},
                                    {tensor->shape[2], tensor->stride[2], 1}};
    attn_tensor chunk = *tensor;
    chunk.shape[3] = 64;
    return attn_cuda_map(cu, map, &chunk, axes, 4);
}

static attn_status make_maps(const attn_cuda *cuda, attn_cuda_plan *plan,
                             const attn_problem *problem)
{
    const attn_cuda_kernel *kernel = &attn_cuda_kernels[plan->kernel];
    attn_cuda_forward_params *params = &plan->params;
    const bool ragged = kernel->loads != ATTN_CUDA_WHOLE;
    TRY(ragged ? map_folded(cuda->driver, &params->q_map, &problem->q, &params->schedule)
               : attn_cuda_map_rows(cuda->driver, &params->q_map, &problem->q,
                                    64)); /* rows of a warpgroup */
    const int32_t box = ATTN_CUDA_IS_PAGED(kernel->loads) ? params->pages.box : kernel->keys;
    attn_status (*const make)(const attn_driver *, attn_tensor_map *, const attn_tensor *,
                              int32_t) = params->joined ? attn_cuda_map_chunks : attn_cuda_map_rows;
    if (params->pages.eights) {
        TRY(map_eights(cuda->driver, &params->k_map, &problem->k, params->pages.k.step, box));
        TRY(map_eights(cuda->driver, &params->v_map, &problem->v, params->pages.v.step, box));
    } else {
        TRY(make(cuda->driver, &params->k_map, &problem->k, box));
        TRY(make(cuda->driver, &params->v_map, &problem->v, box));
    }
    if (params->o_boxed) {
        TRY(make(cuda->driver, &params->o_map, &problem->o, 16)); /* rows of a warp */
    }
    if (params->o_boxed && ragged) {
        TRY(attn_cuda_map_rows(cuda->driver, &params->o_row_map, &problem->o, 1));
    }
    return ATTN_OK;
}

/* Launches the merge of splits, if there is one. */
static attn_status launch_merge(const attn_cuda *cuda, const attn_cuda_plan *plan, void *params,
                                void *stream)
{
    const uint32_t grid[3] = {plan->merge_grid[0], plan->merge_grid[1], 1};
    return plan->merge < 0 ? ATTN_OK
                           : attn_cuda_launch_early(cuda, plan->merge, grid, params, stream);
}

/* Launches a kernel of forward_few, or what does the same where sequences may share pages. */
static attn_status launch_few(const attn_cuda *cuda, const attn_cuda_plan *plan,
                              attn_cuda_codes_params *params, void *stream)
{
    params->forward.few = attn_cuda_few_of(plan);
    const attn_cuda_shared_plan shared = attn_cuda_share(cuda, plan, &params->sharing);
    if (shared.kernel < 0) {
        return attn_cuda_launch(cuda, attn_cuda_few_launched(plan, cuda), plan->grid, params,
                                stream);
    }
    const uint32_t grid[3] = {shared.grid, 1, 1};
    TRY(attn_cuda_launch(cuda, shared.find, grid, params, stream));
    return attn_cuda_launch_early(cuda, shared.kernel, plan->grid, params, stream);
}

/* The kernel of the plan, or the one of the same bits that reads bits of the mask. */
static int launched(const attn_cuda_plan *plan)
{
    return plan->lanes.data == NULL ? plan->kernel : plan->kernel + 1;
}

/* Launches the kernel of the plan, and the merge behind it; kernels for quantised K and V have
 * their scales and shifts too. */
static attn_status launch_all(const attn_cuda *cuda, attn_cuda_plan *plan, void *stream)
{
    const attn_codes *k = &plan->params.problem.k_codes, *v = &plan->params.problem.v_codes;
    const attn_cuda_family family = attn_cuda_kernels[plan->kernel].family;
    if (family != ATTN_CUDA_CODES && family != ATTN_CUDA_FEW) {
        TRY(attn_cuda_launch(cuda, launched(plan), plan->grid, &plan->params, stream));
        return launch_merge(cuda, plan, &plan->params, stream);
    }
    attn_cuda_codes_params params = {plan->params, *k->scale, *k->shift,
                                     *v->scale,    *v->shift, {.table = NULL}};
    TRY(family == ATTN_CUDA_FEW
            ? launch_few(cuda, plan, &params, stream)
            : attn_cuda_launch(cuda, plan->kernel, plan->grid, &params, stream));
    return launch_merge(cuda, plan, &params, stream);
}

/* Makes the maps and enqueues the launches. In the current context. */
static attn_status enqueue(const attn_cuda *cuda, attn_cuda_plan *plan, const attn_problem *problem,
                           const attn_call *call)
{
    const attn_driver *cu = cuda->driver;
    if (attn_cuda_kernels[plan->kernel].loads != ATTN_CUDA_THREADS) {
        TRY(make_maps(cuda, plan, &plan->params.problem));
    }
    attn_cuda_plan_place(plan, cuda,
                         call->workspace ? (char *)call->workspace + plan->own_offset : NULL);
    TRY(attn_cuda_append(cuda, problem, &plan->rotated, call->stream));
    if (plan->params.counter != NULL) {
        TRY(attn_driver_check(cu,
                              cu->set_words((uintptr_t)plan->params.counter, 0, 1, call->stream),
                              "setting a counter"));
    }
    if (plan->lanes.data != NULL) {
        TRY(attn_cuda_lanes_write(cuda, &plan->params.problem.mask, &plan->lanes, call->stream));
    }
    TRY(launch_all(cuda, plan, call->stream));
    return plan->rounded.data == NULL
               ? ATTN_OK
               : attn_cuda_round(cuda, &plan->rounded, &plan->params.problem.o, call->stream);
}

static attn_status check_workspace(const attn_cuda_plan *plan, const attn_call *call)
{
    const bool enough = call->workspace_bytes >= plan->workspace_bytes;
    if (call->workspace == NULL ? plan->rotated.bytes > 0 : !enough) {
        return attn_fail(ATTN_ERR_WORKSPACE, "workspace_bytes = %llu, %llu are needed%s",
                         (unsigned long long)(call->workspace ? call->workspace_bytes : 0),
                         (unsigned long long)plan->workspace_bytes,
                         call->workspace ? "" : " to rotate: a GPU's calls do not allocate");
    }
    return ATTN_OK;
}

attn_status attn_cuda_forward(const attn_cuda *cuda, const attn_problem *problem,
                              const attn_call *call)
{
    attn_cuda_plan plan;
    bool borrowed;
    TRY(attn_cuda_plan_make(&plan, cuda, problem, call->workspace));
    TRY(attn_problem_overlaps(problem, call->workspace,
                              attn_handed_in(call, plan.workspace_bytes)));
    if (plan.grid[0] == 0) {
        return ATTN_OK;
    }
    TRY(check_workspace(&plan, call));
    TRY(attn_cuda_enter(cuda, &borrowed));
    attn_status status = enqueue(cuda, &plan, problem, call);
    attn_cuda_leave(cuda, borrowed);
    return status;
}

/* The class of result bits: one for each kernel and number of splits of the keys, beside those of
 * the CPU. */
enum { FIRST_BITS = 256 };

/* Tensor cores take probabilities in the type of V; those of f32, and with ATTN_PRECISE, are split
 * into parts. */
static double weight_loss(const attn_problem *problem)
{
    const int32_t dtype = problem->q.dtype;
    return problem->precise ? 0 : dtype == ATTN_F16 ? 0x1p-11 : dtype == ATTN_BF16 ? 0x1p-8 : 0;
}

/* Products of parts. With ATTN_PRECISE the mean of 1 for Q K^T and 3 (f16: 5) for P V. */
static int32_t tile_products(const attn_problem *problem)
{
    const int32_t dtype = problem->q.dtype;
    return dtype == ATTN_F32 ? 6 : !problem->precise ? 1 : dtype == ATTN_BF16 ? 2 : 3;
}

attn_status attn_cuda_plan_forward(const attn_cuda *cuda, const attn_problem *problem,
                                   attn_plan *out)
{
    attn_cuda_plan plan;
    TRY(attn_cuda_plan_make(&plan, cuda, problem, NULL));
    const attn_cuda_kernel *kernel = &attn_cuda_kernels[plan.kernel];
    out->kernel = kernel->name;
    (void)snprintf(out->why, sizeof out->why, "%s", plan.why);
    out->strip = kernel->rows;
    out->key_block = kernel->keys;
    out->rows_per_item = kernel->rows;
    out->items = plan.params.schedule.items;
    attn_cuda_plan_costs(&plan, cuda, problem, out);
    out->workspace_bytes = plan.workspace_bytes;
    out->bits = FIRST_BITS + plan.kernel + ATTN_CUDA_KERNELS * (plan.params.schedule.splits - 1);
    out->sum_bits = problem->q.dtype == ATTN_F64 ? 64 : 32;
    out->tile_products = attn_cuda_is_generic(kernel) ? 0 : tile_products(problem);
    const bool two_parts = kernel->family == ATTN_CUDA_FEW && attn_is_code(problem->k.dtype);
    out->weight_loss = attn_cuda_is_generic(kernel) ? 0
                       : two_parts                  ? 0x1p-16
                                                    : weight_loss(problem);
    return ATTN_OK;
}
