/*
 * plan_gpu.h: plans for a GPU that is not here, from plan.c.
 */
#ifndef CLI_PLAN_GPU_H
#define CLI_PLAN_GPU_H

#include <attn/attn.h>

/* What attn_forward would do on an NVIDIA H200. The errors of attn_forward_plan. */
attn_status plan_for_h200(const attn_forward_args *args, attn_plan *plan);

#endif
