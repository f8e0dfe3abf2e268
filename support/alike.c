/*
 * alike.c: see alike.h.
 */
#include "alike.h"
#include <math.h>

enum { BLOCK = 64, CHUNK = 32 }; /* keys or rows; columns of a score */

double alike_kappa_of(int64_t terms, int64_t block, int64_t segment)
{
    const int64_t blocks = (terms + block - 1) / block;
    const int64_t most = segment > 0 && segment < blocks ? segment : blocks;
    double kappa = (double)(terms < block ? terms : block) + 1;
    kappa += blocks > 1 ? (double)most + 1 : 0;
    for (int64_t joined = most; joined < blocks; joined *= 2) {
        kappa += 3;
    }
    return kappa;
}

double alike_kappa(const attn_forward_args *args, bool backward, alike_order order)
{
    const int64_t pages = args->block_table.data ? args->block_table.shape[1] : 1,
                  keys = args->k.shape[1] * pages, rows = args->q.shape[1] * args->q.shape[2],
                  d = args->q.shape[3], dv = args->v.shape[3],
                  segment = order == ALIKE_RUNNING ? 0
                            : backward             ? 64
                                                   : 32;
    const double sums = alike_kappa_of(backward && rows > keys ? rows : keys, BLOCK, segment),
                 scores = alike_kappa_of(backward && dv > d ? dv : d, CHUNK, 0);
    return fmax(sums, scores);
}

bool alike_possible(const problem_spec *spec)
{
    const bool random = spec->inputs == INPUTS_NORMAL || spec->inputs == INPUTS_OUTLIER ||
                        spec->inputs == INPUTS_UNIFORM || spec->inputs == INPUTS_LARGE;
    const bool differ = !spec->has_scale || fabs(spec->scale) > 0x1p-10;
    return !random || !differ || spec->kv_dtype != 0;
}

errors_limits alike_limits(errors_limits limits, double kappa)
{
    return (errors_limits){
        .c = limits.c + kappa, .lse = limits.lse + kappa / 2, .grad_c = limits.grad_c + kappa};
}
