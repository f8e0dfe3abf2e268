/*
 * split.c: gradients of f32 by bf16 parts (kernel/backward/ordered_f32_sm90.cuh), host side: which
 * problems, and parts in the workspace. Pure.
 */
#include "cuda/backward/backward.h"
#include "cuda/forward/forward.h"
#include <math.h>

const char *attn_cuda_split_lacks(const attn_gradients *grads)
{
    const attn_problem *problem = &grads->problem;
    if (problem->d % 2 != 0 || problem->dv % 2 != 0 || problem->d == 0 || problem->dv == 0) {
        return "head dims of f32 are even";
    }
    if (problem->precise || attn_cuda_grad_is_stepped(problem)) {
        return "f32 is without score steps, dropout and ATTN_PRECISE";
    }
    const double rows = (double)problem->q.shape[1] * (double)problem->heads,
                 keys = (double)problem->k.shape[1] * (double)problem->kv_heads;
    if (problem->q.shape[0] == 0 || problem->k.shape[0] == 0 || rows == 0 || keys == 0 ||
        fmax(rows, keys) > 0x1p30) {
        return "rows of all heads are 1 to 2^30";
    }
    return attn_cuda_grad_is_stored(grads) ? NULL
                                           : "strides or alignment are not for pieces of 16 bytes";
}

static bool is_in_fours(const attn_tensor *tensor)
{
    return tensor->dtype == ATTN_F32 && attn_cuda_is_aligned(tensor) && tensor->shape[3] % 4 == 0;
}

static bool are_rows_in_fours(const attn_gradients *grads)
{
    return is_in_fours(&grads->problem.q) && is_in_fours(&grads->d_o) &&
           is_in_fours(&grads->problem.o);
}

/* Steps from row to row fit 32 bits, and LSE is f32. */
static bool has_short_steps(const attn_gradients *grads)
{
    const attn_problem *p = &grads->problem;
    const attn_tensor *const tensors[] = {&p->q,       &p->k,        &p->v,      &p->o,
                                          &grads->d_o, &p->lse,      &grads->dq, &grads->dk,
                                          &grads->dv,  &grads->d_lse};
    for (int i = 0; i < 10; i++) {
        const int64_t step = attn_axis_step(tensors[i], 1);
        if (tensors[i]->data != NULL && (step < INT32_MIN || step > INT32_MAX)) {
            return false;
        }
    }
    return p->lse.dtype == ATTN_F32 &&
           (grads->d_lse.data == NULL || grads->d_lse.dtype == ATTN_F32);
}

bool attn_cuda_split_is_single(const attn_gradients *grads)
{
    enum { GRID_LAYERS = 65535 };
    const attn_problem *problem = &grads->problem;
    return attn_problem_is_whole(problem) && problem->group == 1 && problem->q.shape[1] <= 64 &&
           problem->k.shape[1] <= 64 && problem->batch <= GRID_LAYERS && are_rows_in_fours(grads) &&
           is_in_fours(&problem->k) && is_in_fours(&problem->v) && has_short_steps(grads);
}

attn_cuda_grad_single attn_cuda_split_single(const attn_gradients *grads)
{
    const attn_problem *problem = &grads->problem;
    const attn_sequence whole = attn_problem_whole_sequence(problem, 0);
    const bool has_d_lse = grads->d_lse.data != NULL;
    return (attn_cuda_grad_single){
        .d = (int32_t)problem->d,
        .dv = (int32_t)problem->dv,
        .scale = (float)problem->scale,
        .has_d_lse = has_d_lse,
        .band = attn_mask_band(problem, &whole),
        .k = attn_cuda_place_of(&problem->k),
        .q = attn_cuda_place_of(&problem->q),
        .v = attn_cuda_place_of(&problem->v),
        .d_o = attn_cuda_place_of(&grads->d_o),
        .o = attn_cuda_place_of(&problem->o),
        .lse = attn_cuda_place_of(&problem->lse),
        .d_lse = attn_cuda_place_of(has_d_lse ? &grads->d_lse : &problem->lse),
        .d_v = attn_cuda_place_of(&grads->dv),
        .d_k = attn_cuda_place_of(&grads->dk),
        .d_q = attn_cuda_place_of(&grads->dq),
    };
}

void attn_cuda_split_plan(attn_cuda_grad_plan *plan, attn_arena *arena, int32_t d)
{
    const attn_problem *problem = &plan->params.grads.problem;
    plan->params.aligned = (are_rows_in_fours(&plan->params.grads) ? ATTN_CUDA_ALIGNED_Q : 0) |
                           (attn_cuda_is_aligned(&problem->k) ? ATTN_CUDA_ALIGNED_K : 0) |
                           (attn_cuda_is_aligned(&problem->v) ? ATTN_CUDA_ALIGNED_V : 0);
    plan->q_parts_offset = attn_arena_take(arena, plan->params.rows, 3 * d, 2);
    plan->d_o_parts_offset = attn_arena_take(arena, plan->params.rows, 3 * d, 2);
}

attn_tensor attn_cuda_split_parts(const attn_tensor *tensor, void *parts, int32_t d)
{
    const int64_t rows = tensor->shape[1], heads = 3 * tensor->shape[2];
    return (attn_tensor){.data = parts,
                         .shape = {tensor->shape[0], rows, heads, d},
                         .stride = {heads * rows * d, d, rows * d, 1},
                         .dtype = ATTN_BF16};
}
