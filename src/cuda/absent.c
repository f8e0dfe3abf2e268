/*
 * absent.c: stands in for the rest of this folder in a build without GPU kernels.
 */
#include "core/error.h"
#include "cuda/cuda.h"

const attn_backend attn_cuda_backend = {.name = NULL};

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

attn_status attn_cuda_plan_forward(const attn_cuda *cuda, const attn_problem *problem,
                                   attn_plan *plan)
{
    (void)cuda, (void)problem, (void)plan;
    return refuse();
}

attn_status attn_cuda_plan_backward(const attn_cuda *cuda, const attn_gradients *grads,
                                    attn_plan *plan)
{
    (void)cuda, (void)grads, (void)plan;
    return refuse();
}
