/*
 * plan.h: the plan of the backward pass on the CPU: passes, items, places in the workspace.
 */
#ifndef ATTN_CPU_BACKWARD_PLAN_H
#define ATTN_CPU_BACKWARD_PLAN_H

#include "cpu/backward/fold.h"
#include "cpu/forward/plan.h"
#include "cpu/ukernel/table_grad.h"

/* Offsets in bytes into one thread's scratch; cpu/backward/plan.c draws the map. */
typedef struct attn_grad_map {
    uint64_t k, kt, v, dk, dv, qt, d_o_t, q, d_o, s, dp, p, ds, right, products, keep, plain, clean,
        seen, kt_specials, q_specials, d_o_specials;
    uint64_t bias, lanes, lse, delta, ones, dqt, dq_stacks, sums, key_sums, row_o, row_d_o;
    uint64_t total;
} attn_grad_map;

/* A pass: one parallel loop over items, each the owner of its results: dK and dV of a block of
 * keys, dQ of a block of rows, or all gradients of one KV head. */
typedef struct attn_grad_pass {
    attn_schedule schedule; /* block_rows: keys or query rows of an item */
    /* the results; the last belongs to cpu/backward/bias.h, and comes with dkv */
    bool dq, dkv, d_scores;
    uint64_t items_offset; /* schedule.first_item in the workspace */
} attn_grad_pass;

/* Sums of dS over queries and over every axis along which elements are shared: of a bias with one
 * query, or of slopes. */
typedef struct attn_key_sum {
    attn_tensor out;
    bool slopes; /* sums of -dS |i + off - j| */
} attn_key_sum;

typedef struct attn_grad_plan {
    const attn_ukernel *table;
    const attn_ukernel *rows_table; /* for lse and delta of all rows: real is that of table */
    attn_score_plan scores;
    int64_t d_pad, dv_pad; /* columns of the panels that sums read */
    int64_t keys;          /* keys whose panels and sums are in the scratch at once */
    /* segments, and the sums over them that are in the scratch at once (sums.h), with their
     * bytes */
    int64_t dq_segment, dkv_segment; /* keys, rows (core/segment.h) */
    int dq_sums, dkv_sums;
    uint64_t dq_bytes, dk_bytes, dv_bytes;
    int passes;
    attn_grad_pass pass[2];
    bool whole_bias; /* d_bias has an element for each score */
    int key_sums;
    attn_key_sum key_sum[2];
    int64_t chains;          /* chains of a key's sum: a multiple of the group */
    uint64_t partial_offset; /* double [key_sums][q.shape[0]][heads][k.shape[1]] in the workspace */
    /* d_bias has another shape, or elements that share memory (fold): dS is computed a second time
     * for it (cpu/backward/shared_bias.c) */
    bool shared_bias;
    attn_fold fold;
    int64_t rows;                      /* B Nq Hq */
    uint64_t lse_offset, delta_offset; /* real [rows] in the workspace */
    attn_cells cells;                  /* of the mask tensor */
    uint64_t cells_offset;             /* place of the cells in the workspace */
    int32_t threads;                   /* that find tasks, each with scratch */
    uint64_t scratch_offset;           /* of the first of them in the workspace */
    attn_grad_map map;
    uint64_t workspace_bytes;
} attn_grad_plan;

/* Bytes of the left factor of a strip's products: P or dS of a block of keys. */
static inline int64_t attn_grad_left_bytes(const attn_ukernel *table)
{
    return table->grad->split ? (int64_t)table->p_bytes()
                              : (int64_t)table->key_block * table->strip * table->real_size;
}

/* Data that the tasks of a parallel loop share. */
typedef struct attn_grad_job {
    const attn_grad_plan *plan;
    const attn_gradients *grads;
    char *workspace;
    int part;      /* index of the pass, or of the key sum */
    int64_t tasks; /* of the loop, if they have scratch */
} attn_grad_job;

/* Scratch of a task. An executor may give few tasks to any of its thread numbers. */
static inline char *attn_grad_scratch(const attn_grad_job *job, int64_t index, int32_t thread)
{
    const int64_t place = job->tasks <= job->plan->threads ? index : thread;
    return job->workspace + job->plan->scratch_offset + (uint64_t)place * job->plan->map.total;
}

/* Pure. A plan without a workspace has nothing to run. Errors: overflow. */
attn_status attn_cpu_plan_backward(attn_grad_plan *plan, const attn_gradients *grads,
                                   const attn_machine *machine);

/* Sets items, rows_per_item, tiles, operations and bytes of *out, which are 0. */
void attn_cpu_backward_costs(const attn_grad_plan *plan, const attn_gradients *grads,
                             attn_plan *out);

/* Tasks of the loops with scratch beside the passes: rows (delta.c), and a shared bias
 * (shared_bias.c), 0 if there is none. */
int64_t attn_grad_delta_tasks(const attn_grad_plan *plan);
int64_t attn_grad_shared_tasks(const attn_grad_plan *plan, const attn_gradients *grads);

/* Work items of one sequence in a pass. */
int64_t attn_grad_blocks(const attn_grad_pass *pass, const attn_problem *problem,
                         const attn_sequence *sequence);

#endif
