/*
 * plan_gpu.c: see plan_gpu.h. The only part of the program that includes the library's sources: a
 * plan for a GPU is a pure function of the problem and of a few numbers, but a context needs the
 * GPU itself.
 */
#include "plan_gpu.h"
#include "cuda/forward/forward.h"
#include "gpu.h"

#include <string.h>

/* NVIDIA's data sheets: H200 SXM, H100 SXM, A100 80GB SXM; rates without sparsity. */
static const plan_gpu gpus[] = {
    {"h200", "H200", 90, 132, 60 << 20, 227 << 10, 989.4e3, 66.9e3, 33.5e3, 4800},
    {"h100", "H100", 90, 132, 50 << 20, 227 << 10, 989.4e3, 66.9e3, 33.5e3, 3350},
    {"a100", "A100", 80, 108, 40 << 20, 163 << 10, 312e3, 19.5e3, 9.7e3, 2039},
};
enum { GPUS = sizeof gpus / sizeof gpus[0] };

const plan_gpu *plan_gpu_find(const char *name)
{
    for (int i = 0; i < GPUS; i++) {
        if (strcmp(name, gpus[i].name) == 0) {
            return &gpus[i];
        }
    }
    return NULL;
}

const plan_gpu *plan_gpu_here(void)
{
    gpu_properties here;
    int driver;
    if (gpu_count(&driver) == 0) {
        return NULL;
    }
    gpu_describe(0, &here);
    for (int i = 0; i < GPUS; i++) {
        if (strstr(here.name, gpus[i].model) != NULL) {
            return &gpus[i];
        }
    }
    return NULL;
}

attn_status plan_gpu_forward(const plan_gpu *gpu, const attn_forward_args *args, attn_plan *plan)
{
    const attn_cuda cuda = {.capability = gpu->capability,
                            .multiprocessors = gpu->multiprocessors,
                            .l2_bytes = gpu->l2_bytes,
                            .shared_bytes = gpu->shared_bytes};
    attn_problem problem;
    attn_status status = attn_problem_init(&problem, args, ATTN_OF_DEVICE | ATTN_OF_SHAPES);
    return status == ATTN_OK ? attn_cuda_plan_forward(&cuda, &problem, plan) : status;
}

double plan_gpu_peak(const plan_gpu *gpu, const attn_plan *plan)
{
    return plan->tile_products > 0 ? gpu->half_gflops / plan->tile_products
           : plan->sum_bits == 64  ? gpu->f64_gflops
                                   : gpu->f32_gflops;
}
