/*
 * costs.c: the costs of a backward pass on a GPU, from its plan. Pure.
 */
#include "core/count.h"
#include "cuda/backward/backward.h"
#include <math.h>

/* Score matrices that standard attention writes or reads, as cpu/backward/costs.c counts them. */
enum { STANDARD_PASSES = 7 };

void attn_cuda_grad_costs(const attn_cuda_grad_plan *plan, attn_plan *out)
{
    const attn_gradients *grads = &plan->params.grads;
    const attn_problem *problem = &grads->problem;
    const attn_cuda_kernel *kernel = &attn_cuda_kernels[plan->kernel];
    if (plan->items == 0 || !attn_problem_is_whole(problem)) {
        return;
    }
    const attn_tiling tiling = {kernel->rows, 1, kernel->keys};
    const attn_sequence whole = attn_problem_whole_sequence(problem, 0);
    const bool dkv = grads->dk.data || grads->dv.data, dq = grads->dq.data != NULL;
    const double parts = plan->split ? 1.5 : 1, /* 3 x 2 bytes for 4 */
        rows = (attn_count_bytes(&problem->q) + attn_count_bytes(&grads->d_o)) * parts,
                 keys = attn_count_bytes(&problem->k) + attn_count_bytes(&problem->v),
                 results = attn_count_bytes(&grads->dq) + attn_count_bytes(&grads->dk) +
                           attn_count_bytes(&grads->dv) + attn_count_bytes(&grads->d_bias),
                 once = attn_count_bytes(&problem->o) + results,
                 sums = 4 * (double)plan->params.rows * (double)problem->d,
                 shares = plan->fast ? (double)plan->shares : 1,
                 key_sums = 4 * (double)(problem->d + problem->dv) * (double)problem->batch *
                            (double)problem->kv_heads * (double)problem->k.shape[1],
                 real_size = problem->q.dtype == ATTN_F64 ? 8 : 4;
    attn_tile_count count = {0};
    attn_count_tiles(&count, problem, &whole, &tiling, problem->batch * problem->heads);
    out->tiles_full = count.full;
    out->tiles_partial = count.partial;
    out->tiles_skipped = count.skipped;
    out->flops = 2 * count.scores *
                 ((double)(problem->d + problem->dv) + (dq ? (double)problem->d : 0) +
                  (dkv ? (double)(problem->d + problem->dv) : 0));
    out->bytes_tiled =
        once +
        (dkv ? keys * shares + 2 * (shares - 1) * key_sums +
                   rows * ceil((double)problem->k.shape[1] / kernel->keys)
             : 0) +
        (!dq ? 0
         : plan->fast
             ? sums * (ceil((double)problem->k.shape[1] / kernel->keys) + (plan->rounds ? 0 : 1))
             : rows + keys * ceil((double)problem->q.shape[1] / kernel->rows));
    out->bytes_standard = once + rows + keys +
                          STANDARD_PASSES * (double)problem->heads * (double)problem->q.shape[0] *
                              (double)problem->q.shape[1] * (double)problem->k.shape[1] * real_size;
}
