/*
 * plan_gpu.h: plans for a GPU that is absent.
 */
#ifndef CLI_PLAN_GPU_H
#define CLI_PLAN_GPU_H

#include <attn/attn.h>

/* The plan of attn_forward on an NVIDIA H200. Errors: those of attn_forward_plan. */
attn_status plan_for_h200(const attn_forward_args *args, attn_plan *plan);

#endif
