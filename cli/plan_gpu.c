/*
 * plan_gpu.c: see plan_gpu.h. The only part of the program that includes the library's sources: a
 * plan for a GPU is a pure function of the problem and of a few numbers, but a context needs the
 * GPU itself.
 */
#include "plan_gpu.h"
#include "cuda/forward/forward.h"

attn_status plan_for_h200(const attn_forward_args *args, attn_plan *plan)
{
    static const attn_cuda h200 = {
        .capability = 90, .multiprocessors = 132, .l2_bytes = 60 << 20, .shared_bytes = 227 << 10};
    attn_problem p;
    attn_status status = attn_problem_init(&p, args, ATTN_OF_DEVICE | ATTN_OF_SHAPES);
    return status == ATTN_OK ? attn_cuda_plan_forward(&h200, &p, plan) : status;
}
