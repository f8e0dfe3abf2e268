/*
 * costs.c: the costs of a forward pass on a GPU, from its plan. Pure.
 */
#include "core/count.h"
#include "cuda/forward/forward.h"

#include <math.h>

/* Items of a section run side by side, as many at a time as there are multiprocessors, and K and V
 * stream past each such wave: from memory in the first wave, and later as far as those of the
 * section exceed the L2. `share` of them is visited. */
static double kv_passes(const attn_cuda_schedule *schedule, const attn_cuda *cuda,
                        const attn_problem *problem, double share)
{
    double heads = (double)schedule->section * schedule->fold / (double)problem->group;
    double bytes = heads * (double)problem->keys * (double)(problem->d + problem->dv) *
                   (double)attn_dtype_size(problem->k.dtype);
    double waves = ceil((double)schedule->section * schedule->blocks / cuda->multiprocessors);
    double missed = bytes > cuda->l2_bytes ? 1 - cuda->l2_bytes / bytes : 0;
    return 1 + share * missed * (waves - 1);
}

void attn_cuda_plan_costs(const attn_cuda_plan *plan, const attn_cuda *cuda,
                          const attn_problem *problem, attn_plan *out)
{
    const attn_cuda_schedule *schedule = &plan->params.schedule;
    if (schedule->items == 0 || !plan->params.whole) {
        return;
    }
    const attn_cuda_kernel *kernel = &attn_cuda_kernels[plan->kernel];
    const int64_t rows =
        kernel->family == ATTN_CUDA_FEW ? kernel->rows : (int64_t)schedule->rows * schedule->fold;
    const attn_tiling tiling = {rows, schedule->fold, kernel->keys};
    const attn_sequence whole = attn_problem_whole_sequence(problem, 0);
    attn_tile_count count = {0};
    attn_count_tiles(&count, problem, &whole, &tiling,
                     problem->batch * (problem->heads / schedule->fold));
    double visited = (double)count.full + (double)count.partial;
    double share = visited > 0 ? visited / (visited + (double)count.skipped) : 0;
    double real_size = problem->q.dtype == ATTN_F64 ? 8 : 4;
    attn_count_costs(&count, problem, kv_passes(schedule, cuda, problem, share), real_size, out);
}
