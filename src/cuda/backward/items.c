/*
 * items.c: work items of a backward pass on a GPU (kernel/backward/items.cuh). Pure.
 */
#include "cuda/backward/backward.h"
#include <math.h>

int64_t attn_cuda_grad_blocks(int64_t n, int64_t by)
{
    return n / by + (n % by != 0);
}

attn_cuda_grad_items attn_cuda_grad_items_of(const attn_problem *problem, bool keys, int64_t heads,
                                             int32_t block, double *count)
{
    const int64_t n = keys ? problem->k.shape[1] : problem->q.shape[1];
    const attn_cuda_grad_items items = {
        keys, block, attn_cuda_grad_blocks(n, block), heads, problem->batch * heads, 1, 0, 0, 0};
    *count = !problem->varlen ? (double)problem->batch * (double)heads * (double)items.blocks
             : n > 0          ? (double)heads * (double)(n / block + problem->batch + 2)
                              : 0;
    return items;
}

/* The number of heads, or of shares of them, whose keys run side by side: those whose rows fit in
 * the L2 cache, at least two, since blocks of one head wait for each other's sums. */
static int64_t section(const attn_problem *problem, int64_t shares)
{
    const int element = problem->q.dtype == ATTN_F32 ? 6 : 2; /* f32: in parts */
    const double columns = (double)(element * (problem->d + problem->dv) + 4 * problem->d),
                 bytes = (double)attn_cuda_grad_blocks(problem->group, shares) *
                         (double)problem->q.shape[1] * columns,
                 heads = (double)(problem->batch * problem->kv_heads * shares),
                 fit = 32e6 / fmax(bytes, 1);
    return (int64_t)fmax(fmin(fmax(fit, 2), heads), 1);
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
    items->section = section(problem, items->shares);
}
