/*
 * mma.c: the kernels of backward_sm80 for a problem, and the reason why there are none. Pure.
 */
#include "cuda/backward/backward.h"
#include "cuda/forward/forward.h"

static bool is_stepped(const attn_problem *problem)
{
    return attn_cuda_has_steps(problem) || problem->dropout.on;
}

int attn_cuda_grad_mma(const attn_problem *problem, int32_t part)
{
    const attn_cuda_family family =
        is_stepped(problem) ? ATTN_CUDA_BACKWARD_SM80_STEPS : ATTN_CUDA_BACKWARD_SM80;
    for (int i = 0; i < ATTN_CUDA_KERNELS; i++) {
        const attn_cuda_kernel *kernel = &attn_cuda_kernels[i];
        if (kernel->family == family && kernel->dtype == problem->q.dtype &&
            kernel->loads == part && problem->d <= kernel->d && problem->dv <= kernel->dv) {
            return i;
        }
    }
    return -1;
}

const char *attn_cuda_grad_mma_lacks(const attn_gradients *grads, const attn_cuda *cuda)
{
    const attn_problem *problem = &grads->problem;
    const int kernel = attn_cuda_grad_mma(problem, ATTN_CUDA_GRAD_KEYS);
    if (problem->q.dtype == ATTN_F64) {
        return "gradients have no kernels there for f64";
    }
    if (kernel < 0 || problem->d == 0 || problem->dv == 0) {
        return is_stepped(problem) && problem->q.dtype == ATTN_F32
                   ? "score steps and dropout of f32 end at d = 64"
                   : "head dims end at 128";
    }
    if (attn_cuda_kernels[kernel].shared_bytes > cuda->shared_bytes) {
        return "the GPU's shared memory ends before this head dim's tiles";
    }
    if (problem->q.dtype != ATTN_F32 && problem->precise) {
        return "they take probabilities in the type of q";
    }
    if (grads->d_o.dtype != problem->q.dtype) {
        return "they take dO in the type of q";
    }
    return problem->q.shape[1] > INT32_MAX / 2 || problem->k.shape[1] > INT32_MAX / 2
               ? "lengths end at 2^30"
               : NULL;
}

int32_t attn_cuda_grad_aligned(const attn_gradients *grads)
{
    return (attn_cuda_is_aligned(&grads->problem.q) ? ATTN_CUDA_ALIGNED_Q : 0) |
           (attn_cuda_is_aligned(&grads->problem.k) ? ATTN_CUDA_ALIGNED_K : 0) |
           (attn_cuda_is_aligned(&grads->problem.v) ? ATTN_CUDA_ALIGNED_V : 0) |
           (attn_cuda_is_aligned(&grads->d_o) ? ATTN_CUDA_ALIGNED_D_O : 0);
}
