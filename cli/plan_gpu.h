/*
 * plan_gpu.h: plans for GPUs that are absent.
 */
#ifndef CLI_PLAN_GPU_H
#define CLI_PLAN_GPU_H

#include "machines.h"

#include <attn/attn.h>

/* This machine's first GPU; NULL: none, or unknown. */
const machine_figures *plan_gpu_here(void);

/* The plan of attn_forward on it. Errors: those of attn_forward_plan. */
attn_status plan_gpu_forward(const machine_figures *gpu, const attn_forward_args *args,
                             attn_plan *plan);

/* Likewise, the plan of attn_backward. */
attn_status plan_gpu_backward(const machine_figures *gpu, const attn_backward_args *args,
                              attn_plan *plan);

/* GFLOP/s that the plan's products cannot exceed. */
double plan_gpu_peak(const machine_figures *gpu, const attn_plan *plan);

#endif
