/*
 * absent.c: stands in for the rest of this folder in a build without GPU kernels.
 */
#include "core/error.h"
#include "cuda/cuda.h"

static attn_status refuse(void)
{
    return attn_fail(ATTN_ERR_UNSUPPORTED,
                     "this build has no GPU kernels (ATTN_CUDA=OFF, or nvcc was not found)");
}

attn_status attn_cuda_create(attn_cuda **cuda, int32_t ordinal, const attn_allocator *allocator)
{
    (void)ordinal, (void)allocator;
    *cuda = NULL;
    return refuse();
}

void attn_cuda_destroy(attn_cuda *cuda, const attn_allocator *allocator)
{
    (void)cuda, (void)allocator;
}

static attn_status forward_plan(const void *device, const attn_problem *problem, attn_plan *plan)
{
    (void)device, (void)problem, (void)plan;
    return refuse();
}

static attn_status backward_plan(const void *device, const attn_gradients *grads, attn_plan *plan)
{
    (void)device, (void)grads, (void)plan;
    return refuse();
}

/* No context has it, but a plan may be asked for. */
const attn_backend attn_cuda_backend = {.forward = {.plan = forward_plan},
                                        .backward = {.plan = backward_plan}};
