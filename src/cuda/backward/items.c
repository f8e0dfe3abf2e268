/*
 * items.c: work items of a backward pass on a GPU (kernel/backward/items.cuh). Pure.
 */
#include "cuda/backward/backward.h"
#include "core/mask.h"
#include <math.h>

/* The number of heads, or of shares of them, whose keys run side by side: those whose rows fit in
 * the L2 cache beside other things, at least two, since blocks of one head wait for each other's
 * sums; as many in all sections, so that CTAs end together. whole: each block sees all rows. */
static int64_t section(const attn_problem *problem, int64_t shares, bool whole)
{
    const int element = problem->q.dtype == ATTN_F32 ? 6 : 2; /* f32: in parts */
    const double columns = (double)(element * (problem->d + problem->dv) + 4 * problem->d),
                 bytes = (double)attn_cuda_grad_blocks(problem->group, shares) *
                         (double)problem->q.shape[1] * columns,
                 heads = (double)(problem->batch * problem->kv_heads * shares),
                 fit = fmax((whole ? 24e6 : 18e6) / fmax(bytes, 1), 2);
    return (int64_t)fmax(ceil(heads / ceil(heads / fit)), 1);
}

void attn_cuda_grad_spread(attn_cuda_grad_items *items, const attn_problem *problem,
                           const attn_cuda_kernel *kernel)
{
    enum { ELEMENTS = 1 << 19 };
    const int64_t left = problem->window_left, right = problem->window_right;
    const bool whole = left == ATTN_UNBOUNDED && right == ATTN_UNBOUNDED;
    items->least = (whole ? 2 : 1) * (int64_t)ELEMENTS / kernel->d;
    items->span =
        left == ATTN_UNBOUNDED || right == ATTN_UNBOUNDED || left > INT32_MAX || right > INT32_MAX
            ? INT64_MAX
            : left + right + kernel->keys;
    items->shares = attn_cuda_grad_blocks(
        problem->group, attn_cuda_grad_heads(items, problem->group, problem->q.shape[1]));
    items->section = section(problem, items->shares, whole);
}

int attn_cuda_grad_ahead(attn_cuda_grad_plan *plan, const attn_cuda *cuda)
{
    attn_cuda_backward_params *const params = &plan->params;
    const attn_problem *problem = &params->grads.problem;
    const attn_cuda_kernel *ordered =
        &attn_cuda_kernels[attn_cuda_grad_ordered(problem, ATTN_CUDA_GRAD_ORDERED)];
    const int kernel =
        attn_cuda_grad_kernel(problem, ATTN_CUDA_BACKWARD_SM90, ATTN_CUDA_GRAD_AHEAD);
    const bool pairs = attn_cuda_grad_ctas(ordered) > 1;
    const int64_t units = attn_cuda_grad_blocks(problem->q.shape[1], ATTN_GRAD_UNIT_ROWS),
                  all = units * problem->batch * problem->heads,
                  chunks = pairs ? cuda->multiprocessors / 2 : cuda->multiprocessors;
    if (kernel < 0 || !(ordered->stays || pairs) || !params->whole ||
        all < ATTN_GRAD_CHUNK_UNITS * chunks || all > INT32_MAX / 2) {
        return -1;
    }
    params->units = (uint32_t)units;
    params->ahead = (uint32_t)(pairs ? 2 * attn_cuda_grad_blocks(cuda->multiprocessors, 11)
                                     : attn_cuda_grad_blocks(cuda->multiprocessors, 4));
    return kernel;
}

attn_cuda_grad_rests attn_cuda_grad_rests_of(const attn_problem *problem,
                                             const attn_cuda_kernel *kernel, int64_t runs)
{
    enum { LEAST_TILES = 16 };
    const attn_cuda_family family = kernel->family;
    const bool has_them =
        kernel->dtype != ATTN_F32 &&
        (family == ATTN_CUDA_BACKWARD_SM90 || family == ATTN_CUDA_BACKWARD_SM90_LIGHT ||
         family == ATTN_CUDA_BACKWARD_SM90_ALIBI || family == ATTN_CUDA_BACKWARD_SM90_MASK ||
         family == ATTN_CUDA_BACKWARD_SM90_BIAS || family == ATTN_CUDA_BACKWARD_SM90_DROPOUT ||
         family == ATTN_CUDA_BACKWARD_SM90_TABLES);
    const attn_sequence whole = attn_problem_whole_sequence(problem, 0);
    const attn_interval rows =
        attn_mask_queries(problem, &whole, 0, whole.nk < kernel->keys ? whole.nk : kernel->keys);
    const int64_t heads = problem->batch * problem->kv_heads,
                  blocks = attn_cuda_grad_blocks(whole.nk, kernel->keys),
                  end = attn_cuda_grad_blocks(rows.hi, kernel->rows),
                  tiles = end - rows.lo / kernel->rows, with = heads < runs ? heads : runs;
    if (!has_them || problem->group != 1 || tiles < LEAST_TILES || heads * blocks < 2 * runs) {
        return (attn_cuda_grad_rests){0};
    }
    const int64_t each = attn_cuda_grad_blocks(runs, with), half = blocks / 2,
                  longest = tiles * 4 / 5, shortest = tiles / 50;
    return (attn_cuda_grad_rests){(int32_t)with, (int32_t)(each < half ? each : half),
                                  (int32_t)(end - longest),
                                  (int32_t)((longest - shortest) * 16 / with)};
}
