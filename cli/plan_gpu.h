/*
 * plan_gpu.h: GPUs by their published figures, and plans for them where they are absent.
 */
#ifndef CLI_PLAN_GPU_H
#define CLI_PLAN_GPU_H

#include <attn/attn.h>

typedef struct plan_gpu {
    const char *name, *model; /* "h200"; a part of the driver's name for it */
    int capability, multiprocessors, l2_bytes, shared_bytes;
    /* dense products of 16-bit numbers on tensor cores, multiply-adds of f32 and f64: GFLOP/s */
    double half_gflops, f32_gflops, f64_gflops;
    double read_gbytes; /* GB/s of its memory */
} plan_gpu;

/* By its name; NULL: unknown. */
const plan_gpu *plan_gpu_find(const char *name);

/* This machine's first GPU; NULL: none, or unknown. */
const plan_gpu *plan_gpu_here(void);

/* The plan of attn_forward on it. Errors: those of attn_forward_plan. */
attn_status plan_gpu_forward(const plan_gpu *gpu, const attn_forward_args *args, attn_plan *plan);

/* GFLOP/s that the plan's products cannot exceed. */
double plan_gpu_peak(const plan_gpu *gpu, const attn_plan *plan);

#endif
