/*
 * costs.c: what a plan of the backward pass costs: tiles, operations, bytes. Pure.
 */
#include "core/count.h"
#include "cpu/backward/backward.h"
#include <math.h>

/* Score matrices that standard attention writes or reads, given P: P for dV; dP written; P and dP
 * for dS, which is written, and read for dQ and for dK. */
enum { STANDARD_PASSES = 7 };

static attn_tile_count count_tiles(const attn_grad_plan *plan, const attn_problem *p)
{
    const attn_tiling tiling = {plan->uk->strip, p->group, plan->uk->grad->key_tile};
    const bool alike = !p->varlen && !p->used_q.data && !p->used_k.data;
    const int64_t all = attn_problem_sequences(p), different = alike && all > 0 ? 1 : all;
    attn_tile_count count = {0};
    for (int64_t b = 0; b < different && plan->passes > 0; b++) {
        const attn_sequence s = attn_problem_sequence(p, b);
        attn_count_tiles(&count, p, &s, &tiling, (alike ? all : 1) * p->kv_heads);
    }
    return count;
}

/* Bytes that a pass reads: one that owns keys reads Q and dO for each set of keys, one that owns
 * rows reads K and V for each block of rows. */
static double bytes_of_pass(const attn_grad_plan *plan, const attn_grad_pass *pass,
                            const attn_gradients *g)
{
    const attn_problem *p = &g->p;
    const double rows = attn_count_bytes(&p->q) + attn_count_bytes(&g->d_o),
                 keys = attn_count_bytes(&p->k) + attn_count_bytes(&p->v);
    const double set = fmin((double)plan->keys, (double)pass->schedule.block_rows);
    const double sets = ceil((double)p->k.shape[1] / set);
    const double blocks =
        ceil((double)p->group * (double)p->q.shape[1] / (double)pass->schedule.block_rows);
    return attn_count_bytes(&p->mask) + attn_count_bytes(&p->bias) +
           (pass->dkv ? rows * fmax(sets, 1) + keys : rows + keys * fmax(blocks, 1));
}

void attn_cpu_backward_costs(const attn_grad_plan *plan, const attn_gradients *g, attn_plan *out)
{
    const attn_problem *p = &g->p;
    const attn_tile_count count = count_tiles(plan, p);
    const double results = attn_count_bytes(&g->dq) + attn_count_bytes(&g->dk) +
                           attn_count_bytes(&g->dv) + attn_count_bytes(&g->d_bias);
    const double once = attn_count_bytes(&p->o) + results;
    double products = (double)(p->d + p->dv); /* S and dP */
    out->bytes_tiled = once;
    for (int i = 0; i < plan->passes; i++) {
        const attn_grad_pass *pass = &plan->pass[i];
        products += pass->dq ? (double)p->d : 0;
        products += pass->dkv ? (double)(p->d + p->dv) : 0;
        if (pass->dq) {
            out->rows_per_item = min64(pass->schedule.block_rows, p->q.shape[1] * p->group);
        }
        out->items += pass->schedule.items;
        out->bytes_tiled += bytes_of_pass(plan, pass, g);
    }
    out->tiles_full = count.full;
    out->tiles_partial = count.partial;
    out->tiles_skipped = count.skipped;
    out->flops = 2 * products * count.scores;
    out->bytes_standard = once + attn_count_bytes(&p->q) + attn_count_bytes(&g->d_o) +
                          attn_count_bytes(&p->k) + attn_count_bytes(&p->v) +
                          STANDARD_PASSES * (double)p->heads * (double)p->q.shape[0] *
                              (double)p->q.shape[1] * (double)p->k.shape[1] *
                              (double)plan->uk->real_size;
}
