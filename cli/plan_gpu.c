/*
 * plan_gpu.c: see plan_gpu.h. It includes the library's sources: a plan for a GPU is a pure
 * function of the problem and of a few numbers, whereas a context needs the GPU itself.
 */
#include "plan_gpu.h"
#include "cuda/gpu.h"
#include "gpu.h"

#include <ctype.h>
#include <string.h>

const machine_figures *plan_gpu_here(void)
{
    gpu_properties here;
    int driver;
    if (gpu_count(&driver) == 0) {
        return NULL;
    }
    gpu_describe(0, &here);
    for (int i = 0; i < MACHINES; i++) {
        const char *at = strstr(here.name, machines[i].model);
        if (at != NULL && !isalnum((unsigned char)at[strlen(machines[i].model)])) {
            return &machines[i];
        }
    }
    return NULL;
}

static attn_cuda context_of(const machine_figures *gpu)
{
    return (attn_cuda){.capability = gpu->capability,
                       .multiprocessors = gpu->multiprocessors,
                       .l2_bytes = gpu->l2_bytes,
                       .shared_bytes = gpu->shared_bytes};
}

attn_status plan_gpu_forward(const machine_figures *gpu, const attn_forward_args *args,
                             attn_plan *plan)
{
    const attn_cuda cuda = context_of(gpu);
    attn_problem problem;
    attn_status status = attn_problem_init(&problem, args, ATTN_OF_DEVICE | ATTN_OF_SHAPES);
    return status == ATTN_OK ? attn_cuda_backend.forward.plan(&cuda, &problem, plan) : status;
}

attn_status plan_gpu_backward(const machine_figures *gpu, const attn_backward_args *args,
                              attn_plan *plan)
{
    const attn_cuda cuda = context_of(gpu);
    attn_gradients grads;
    attn_status status = attn_gradients_init(&grads, args, ATTN_OF_DEVICE | ATTN_OF_SHAPES);
    return status == ATTN_OK ? attn_cuda_backend.backward.plan(&cuda, &grads, plan) : status;
}

double plan_gpu_peak(const machine_figures *gpu, const attn_plan *plan)
{
    return plan->tile_products > 0 ? gpu->half_gflops / plan->tile_products
                                   : machine_gflops(gpu, plan->sum_bits);
}
