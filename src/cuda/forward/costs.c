/*
 * costs.c: the costs of a forward pass on a GPU, from its plan. Pure.
 */
#include "core/count.h"
#include "cuda/forward/forward.h"

#include <math.h>

/* Items of a section run side by side, as many at a time as there are multiprocessors, and K and V
 * stream past each such wave: from memory in the first wave, and later as far as those of the
 * section exceed the L2. `share` of them is visited. */
static double kv_passes(const attn_cuda_schedule *s, const attn_cuda *x, const attn_problem *p,
                        double share)
{
    double heads = (double)s->section * s->fold / (double)p->group;
    double bytes = heads * (double)p->k.shape[1] * (double)(p->d + p->dv) *
                   (double)attn_dtype_size(p->k.dtype);
    double waves = ceil((double)s->section * s->blocks / x->multiprocessors);
    double missed = bytes > x->l2_bytes ? 1 - x->l2_bytes / bytes : 0;
    return 1 + share * missed * (waves - 1);
}

void attn_cuda_plan_costs(const attn_cuda_plan *plan, const attn_cuda *x, const attn_problem *p,
                          attn_plan *out)
{
    const attn_cuda_schedule *s = &plan->params.schedule;
    if (s->items == 0 || !plan->params.whole) {
        return;
    }
    const attn_tiling tiling = {(int64_t)s->rows * s->fold, s->fold,
                                attn_cuda_kernels[plan->kernel].keys};
    const attn_sequence whole = attn_problem_whole_sequence(p, 0);
    attn_tile_count count = {0};
    attn_count_tiles(&count, p, &whole, &tiling, p->batch * (p->heads / s->fold));
    double visited = (double)count.full + (double)count.partial;
    double share = visited > 0 ? visited / (visited + (double)count.skipped) : 0;
    double real_size = p->q.dtype == ATTN_F64 ? 8 : 4;
    attn_count_costs(&count, p, kv_passes(s, x, p, share), real_size, out);
}
