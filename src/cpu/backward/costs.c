/*
 * costs.c: what a plan of the backward pass costs: tiles, operations, bytes. Pure.
 */
#include "core/count.h"
#include "cpu/backward/plan.h"
#include <math.h>

/* Score matrices that standard attention writes or reads, given P: P for dV; dP written; P and dP
 * for dS, which is written, and read for dQ and for dK. */
enum { STANDARD_PASSES = 7 };

static attn_tile_count count_tiles(const attn_grad_plan *plan, const attn_problem *problem)
{
    const attn_tiling tiling = {plan->table->strip, problem->group, plan->table->grad->key_tile};
    const bool alike = !problem->varlen && !problem->used_q.data && !problem->used_k.data;
    const int64_t all = attn_problem_sequences(problem), different = alike && all > 0 ? 1 : all;
    attn_tile_count count = {0};
    for (int64_t b = 0; b < different && plan->passes > 0; b++) {
        const attn_sequence sequence = attn_problem_sequence(problem, b);
        attn_count_tiles(&count, problem, &sequence, &tiling,
                         (alike ? all : 1) * problem->kv_heads);
    }
    return count;
}

/* Bytes that a pass reads: one that owns keys reads Q and dO for each set of keys, one that owns
 * rows reads K and V for each block of rows. */
static double bytes_of_pass(const attn_grad_plan *plan, const attn_grad_pass *pass,
                            const attn_gradients *grads)
{
    const attn_problem *problem = &grads->problem;
    const double rows = attn_count_bytes(&problem->q) + attn_count_bytes(&grads->d_o),
                 keys = attn_count_bytes(&problem->k) + attn_count_bytes(&problem->v);
    const double set = fmin((double)plan->keys, (double)pass->schedule.block_rows);
    const double sets = ceil((double)problem->k.shape[1] / set);
    const double blocks = ceil((double)problem->group * (double)problem->q.shape[1] /
                               (double)pass->schedule.block_rows);
    return attn_count_bytes(&problem->mask) + attn_count_bytes(&problem->bias) +
           (pass->dkv ? rows * fmax(sets, 1) + keys : rows + keys * fmax(blocks, 1));
}

void attn_cpu_backward_costs(const attn_grad_plan *plan, const attn_gradients *grads,
                             attn_plan *out)
{
    const attn_problem *problem = &grads->problem;
    const attn_tile_count count = count_tiles(plan, problem);
    const double results = attn_count_bytes(&grads->dq) + attn_count_bytes(&grads->dk) +
                           attn_count_bytes(&grads->dv) + attn_count_bytes(&grads->d_bias);
    const double once = attn_count_bytes(&problem->o) + results;
    double products = (double)(problem->d + problem->dv); /* S and dP */
    out->bytes_tiled = once;
    for (int i = 0; i < plan->passes; i++) {
        const attn_grad_pass *pass = &plan->pass[i];
        products += pass->dq ? (double)problem->d : 0;
        products += pass->dkv ? (double)(problem->d + problem->dv) : 0;
        if (pass->dq) {
            out->rows_per_item =
                min64(pass->schedule.block_rows, problem->q.shape[1] * problem->group);
        }
        out->items += pass->schedule.items;
        out->bytes_tiled += bytes_of_pass(plan, pass, grads);
    }
    out->tiles_full = count.full;
    out->tiles_partial = count.partial;
    out->tiles_skipped = count.skipped;
    out->flops = 2 * products * count.scores;
    out->bytes_standard = once + attn_count_bytes(&problem->q) + attn_count_bytes(&grads->d_o) +
                          attn_count_bytes(&problem->k) + attn_count_bytes(&problem->v) +
                          (double)STANDARD_PASSES * (double)problem->heads *
                              (double)problem->q.shape[0] * (double)problem->q.shape[1] *
                              (double)problem->k.shape[1] * (double)plan->table->real_size;
}
