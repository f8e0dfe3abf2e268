/*
 * forward.c: the forward pass on a GPU, host side: plan, tensor maps, launch on the caller's
 * stream.
 */
#include "cuda/forward/forward.h"
#include "core/error.h"
#include <stdio.h>

/* Columns, rows, heads, batches of a 16-bit tensor; boxes of 64 columns x box_rows. */
static attn_status make_map(const attn_driver *cu, attn_tensor_map *map, const attn_tensor *t,
                            int32_t box_rows)
{
    static const uint32_t steps[4] = {1, 1, 1, 1};
    static const int axis[4] = {3, 1, 2, 0};
    const uint32_t box[4] = {64, (uint32_t)box_rows, 1, 1};
    uint64_t extents[4], strides[3];
    for (int i = 0; i < 4; i++) {
        extents[i] = (uint64_t)t->shape[axis[i]];
        if (i > 0) { /* the stride of an axis of extent 1 does not count, but must be a legal one */
            strides[i - 1] = t->shape[axis[i]] > 1 ? (uint64_t)t->stride[axis[i]] * 2 : 16;
        }
    }
    return attn_driver_check(cu,
                             cu->tensor_map(map, CU_TENSOR_U16, 4, t->data, extents, strides, box,
                                            steps, 0, CU_SWIZZLE_128B, CU_PROMOTION_256B, 0),
                             "making a tensor map");
}

static attn_status make_maps(const attn_cuda *x, attn_cuda_plan *plan, const attn_problem *p)
{
    const attn_cuda_kernel *k = &attn_cuda_kernels[plan->kernel];
    /* rows of a warpgroup */
    attn_status status = make_map(x->driver, &plan->params.q_map, &p->q, 64);
    if (status == ATTN_OK) {
        status = make_map(x->driver, &plan->params.k_map, &p->k, k->keys);
    }
    if (status == ATTN_OK) {
        status = make_map(x->driver, &plan->params.v_map, &p->v, k->keys);
    }
    if (status == ATTN_OK && plan->params.o_boxed) {
        status = make_map(x->driver, &plan->params.o_map, &p->o, 16); /* rows of a warp */
    }
    return status;
}

/* The current context must be of this GPU; a thread without one borrows the one that attn_cuda
 * keeps. */
static attn_status enter(const attn_cuda *x, bool *pushed)
{
    cu_context current = NULL;
    cu_device device = -1;
    *pushed = false;
    attn_status status = attn_driver_check(x->driver, x->driver->context_current(&current),
                                           "asking for the context");
    if (status != ATTN_OK) {
        return status;
    }
    if (current == NULL) {
        *pushed = true;
        return attn_driver_check(x->driver, x->driver->context_push(x->context),
                                 "entering the GPU's context");
    }
    if (x->driver->context_device(&device) != 0 || device != x->device) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "the current CUDA context is of GPU %d, the attn_context of GPU %d",
                         device, x->device);
    }
    return ATTN_OK;
}

/* In the current context. */
static attn_status enqueue(const attn_cuda *x, attn_cuda_plan *plan, const attn_cuda_call *call)
{
    const attn_cuda_kernel *k = &attn_cuda_kernels[plan->kernel];
    const attn_driver *cu = x->driver;
    attn_status status = ATTN_OK;
    void *params[] = {&plan->params};
    if (plan->workspace_bytes > 0 && call->workspace != NULL) {
        plan->params.counter = call->workspace;
        status = attn_driver_check(
            cu, cu->set_words((uintptr_t)call->workspace, 0, 1, call->stream), "setting a counter");
    }
    if (status == ATTN_OK) {
        status =
            attn_driver_check(cu,
                              cu->launch((cu_function)x->kernels[plan->kernel], plan->grid[0],
                                         plan->grid[1], plan->grid[2], (unsigned)k->threads, 1, 1,
                                         (unsigned)k->shared_bytes, call->stream, params, NULL),
                              k->name);
    }
    return status;
}

attn_status attn_cuda_forward(const attn_cuda *x, const attn_problem *p, const attn_cuda_call *call)
{
    attn_cuda_plan plan;
    bool pushed;
    attn_status status = attn_cuda_plan_make(&plan, x, p);
    if (status != ATTN_OK || plan.grid[0] == 0) {
        return status;
    }
    if (call->workspace != NULL && call->workspace_bytes < plan.workspace_bytes) {
        return attn_fail(ATTN_ERR_WORKSPACE, "workspace_bytes = %llu, %llu are needed",
                         (unsigned long long)call->workspace_bytes,
                         (unsigned long long)plan.workspace_bytes);
    }
    status = attn_cuda_kernels[plan.kernel].tma ? make_maps(x, &plan, p) : ATTN_OK;
    if (status == ATTN_OK) {
        status = enter(x, &pushed);
    }
    if (status != ATTN_OK) {
        return status;
    }
    status = enqueue(x, &plan, call);
    if (pushed) {
        cu_context borrowed;
        (void)x->driver->context_pop(&borrowed);
    }
    return status;
}

/* A class of result bits for each kernel, beside those of the CPU. */
enum { FIRST_BITS = 256 };

/* Tensor cores take probabilities in the type of V; f32 is split into parts. */
static double weight_loss(int32_t dtype)
{
    return dtype == ATTN_F16 ? 0x1p-11 : dtype == ATTN_BF16 ? 0x1p-8 : 0;
}

attn_status attn_cuda_plan_forward(const attn_cuda *x, const attn_problem *p, attn_plan *out)
{
    attn_cuda_plan plan;
    attn_status status = attn_cuda_plan_make(&plan, x, p);
    if (status != ATTN_OK) {
        return status;
    }
    const attn_cuda_kernel *k = &attn_cuda_kernels[plan.kernel];
    out->kernel = k->name;
    (void)snprintf(out->why, sizeof out->why, "%s", plan.why);
    out->strip = k->rows;
    out->key_block = k->keys;
    out->rows_per_item = k->rows;
    out->items = plan.params.schedule.items;
    out->flops = attn_cuda_flops(p);
    out->workspace_bytes = plan.workspace_bytes;
    out->bits = FIRST_BITS + plan.kernel;
    out->sum_bits = p->q.dtype == ATTN_F64 ? 64 : 32;
    out->weight_loss = k->family == ATTN_CUDA_GENERIC ? 0 : weight_loss(p->q.dtype);
    return ATTN_OK;
}
