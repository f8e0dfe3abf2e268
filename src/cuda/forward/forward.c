/*
 * forward.c: the forward pass on a GPU, host side: plan, tensor maps, launch on the caller's
 * stream.
 */
#include "cuda/forward/forward.h"
#include "core/error.h"
#include "core/overlap.h"
#include <stdio.h>

/* An axis of a tensor, in elements, and how far a box of it reaches. */
typedef struct map_axis {
    int64_t extent, stride;
    int32_t box;
} map_axis;

/* Boxes of a 16-bit tensor, 64 columns each. axes: the other ones, from the innermost on. */
static attn_status make_map(const attn_driver *cu, attn_tensor_map *map, const attn_tensor *tensor,
                            const map_axis *axes, uint32_t count)
{
    static const uint32_t steps[5] = {1, 1, 1, 1, 1};
    uint64_t extents[5] = {(uint64_t)tensor->shape[3]}, strides[4];
    uint32_t box[5] = {64};
    for (uint32_t i = 0; i < count; i++) {
        extents[i + 1] = (uint64_t)axes[i].extent;
        box[i + 1] = (uint32_t)axes[i].box;
        /* the stride of an axis of extent 1 does not count, but must be a legal one */
        strides[i] = axes[i].extent > 1 ? (uint64_t)axes[i].stride * 2 : 16;
    }
    return attn_driver_check(cu,
                             cu->tensor_map(map, CU_TENSOR_U16, count + 1, tensor->data, extents,
                                            strides, box, steps, 0, CU_SWIZZLE_128B,
                                            CU_PROMOTION_256B, 0),
                             "making a tensor map");
}

/* Columns, rows, heads, batches; boxes of so many rows of a head. */
static attn_status map_rows(const attn_driver *cu, attn_tensor_map *map, const attn_tensor *tensor,
                            int32_t rows)
{
    const map_axis axes[3] = {{tensor->shape[1], tensor->stride[1], rows},
                              {tensor->shape[2], tensor->stride[2], 1},
                              {tensor->shape[0], tensor->stride[0], 1}};
    return make_map(cu, map, tensor, axes, 3);
}

/* Columns, `fold` heads, rows, such heads, batches; boxes of `piece` rows of `fold` heads. */
static attn_status map_folded(const attn_driver *cu, attn_tensor_map *map,
                              const attn_tensor *tensor, const attn_cuda_schedule *schedule)
{
    const map_axis axes[4] = {
        {schedule->fold, tensor->stride[2], schedule->fold},
        {tensor->shape[1], tensor->stride[1], schedule->piece},
        {tensor->shape[2] / schedule->fold, tensor->stride[2] * schedule->fold, 1},
        {tensor->shape[0], tensor->stride[0], 1}};
    return make_map(cu, map, tensor, axes, 4);
}

static attn_status make_maps(const attn_cuda *cuda, attn_cuda_plan *plan,
                             const attn_problem *problem)
{
    const attn_cuda_kernel *kernel = &attn_cuda_kernels[plan->kernel];
    attn_cuda_forward_params *params = &plan->params;
    const bool ragged = kernel->loads != ATTN_CUDA_WHOLE;
    TRY(ragged ? map_folded(cuda->driver, &params->q_map, &problem->q, &params->schedule)
               : map_rows(cuda->driver, &params->q_map, &problem->q, 64)); /* rows of a warpgroup */
    const int32_t box = kernel->loads == ATTN_CUDA_PAGED ? params->pages.box : kernel->keys;
    TRY(map_rows(cuda->driver, &params->k_map, &problem->k, box));
    TRY(map_rows(cuda->driver, &params->v_map, &problem->v, box));
    if (params->o_boxed) {
        TRY(map_rows(cuda->driver, &params->o_map, &problem->o, 16)); /* rows of a warp */
    }
    if (params->o_boxed && ragged) {
        TRY(map_rows(cuda->driver, &params->o_row_map, &problem->o, 1));
    }
    return ATTN_OK;
}

/* The current context must be of this GPU; a thread without one borrows the one that attn_cuda
 * keeps. */
static attn_status enter(const attn_cuda *cuda, bool *pushed)
{
    cu_context current = NULL;
    cu_device device = -1;
    *pushed = false;
    TRY(attn_driver_check(cuda->driver, cuda->driver->context_current(&current),
                          "asking for the context"));
    if (current == NULL) {
        *pushed = true;
        return attn_driver_check(cuda->driver, cuda->driver->context_push(cuda->context),
                                 "entering the GPU's context");
    }
    if (cuda->driver->context_device(&device) != 0 || device != cuda->device) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "the current CUDA context is of GPU %d, the attn_context of GPU %d",
                         device, cuda->device);
    }
    return ATTN_OK;
}

static attn_status launch(const attn_cuda *cuda, attn_cuda_plan *plan, int kernel,
                          const uint32_t grid[3], void *stream)
{
    const attn_cuda_kernel *chosen = &attn_cuda_kernels[kernel];
    void *params[] = {&plan->params};
    return attn_driver_check(cuda->driver,
                             cuda->driver->launch((cu_function)cuda->kernels[kernel], grid[0],
                                                  grid[1], grid[2], (unsigned)chosen->threads, 1, 1,
                                                  (unsigned)chosen->shared_bytes, stream, params,
                                                  NULL),
                             chosen->name);
}

/* In the current context. */
static attn_status enqueue(const attn_cuda *cuda, attn_cuda_plan *plan, const attn_call *call)
{
    const attn_driver *cu = cuda->driver;
    attn_cuda_plan_place(plan, cuda, call->workspace);
    if (plan->params.counter != NULL) {
        TRY(attn_driver_check(cu, cu->set_words((uintptr_t)call->workspace, 0, 1, call->stream),
                              "setting a counter"));
    }
    TRY(launch(cuda, plan, plan->kernel, plan->grid, call->stream));
    if (plan->merge >= 0) {
        const uint32_t grid[3] = {plan->merge_grid, 1, 1};
        TRY(launch(cuda, plan, plan->merge, grid, call->stream));
    }
    return ATTN_OK;
}

attn_status attn_cuda_forward(const attn_cuda *cuda, const attn_problem *problem,
                              const attn_call *call)
{
    attn_cuda_plan plan;
    bool pushed;
    TRY(attn_cuda_plan_make(&plan, cuda, problem));
    if (plan.grid[0] == 0) {
        return ATTN_OK;
    }
    if (call->workspace != NULL && call->workspace_bytes < plan.workspace_bytes) {
        return attn_fail(ATTN_ERR_WORKSPACE, "workspace_bytes = %llu, %llu are needed",
                         (unsigned long long)call->workspace_bytes,
                         (unsigned long long)plan.workspace_bytes);
    }
    TRY(attn_problem_overlaps(problem, call->workspace, plan.workspace_bytes));
    if (attn_cuda_kernels[plan.kernel].loads != ATTN_CUDA_THREADS) {
        TRY(make_maps(cuda, &plan, problem));
    }
    TRY(enter(cuda, &pushed));
    attn_status status = enqueue(cuda, &plan, call);
    if (pushed) {
        cu_context borrowed;
        (void)cuda->driver->context_pop(&borrowed);
    }
    return status;
}

/* A class of result bits for each kernel and number of splits of the keys, beside those of the
 * CPU. */
enum { FIRST_BITS = 256 };

/* Tensor cores take probabilities in the type of V; f32 is split into parts. */
static double weight_loss(int32_t dtype)
{
    return dtype == ATTN_F16 ? 0x1p-11 : dtype == ATTN_BF16 ? 0x1p-8 : 0;
}

attn_status attn_cuda_plan_forward(const attn_cuda *cuda, const attn_problem *problem,
                                   attn_plan *out)
{
    attn_cuda_plan plan;
    TRY(attn_cuda_plan_make(&plan, cuda, problem));
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
    out->tile_products = kernel->family == ATTN_CUDA_GENERIC ? 0
                         : problem->q.dtype == ATTN_F32      ? 6
                                                             : 1;
    out->weight_loss = kernel->family == ATTN_CUDA_GENERIC ? 0 : weight_loss(problem->q.dtype);
    return ATTN_OK;
}
