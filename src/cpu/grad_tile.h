/*
 * grad_tile.h: one tile of the backward pass: from packed Q, K, V, dO of a strip and a block of keys to P and dS. What
 * is then done with them is the callers' business: products (cpu/backward.c), or sums over scores (cpu/grad_scores.c).
 */
#ifndef ATTN_CPU_GRAD_TILE_H
#define ATTN_CPU_GRAD_TILE_H

#include "cpu/backward.h"
#include "cpu/scores.h"

/* An item, or part of one, on one thread. */
typedef struct attn_grad_run {
    const attn_backward_plan *plan;
    const attn_gradients *g;
    const attn_problem *p;
    const attn_ukernel *uk;
    const attn_ukernel_grad *grad;
    attn_sequence seq;
    int64_t kv_head;
    attn_score_run scores;
    double factor;           /* of dS */
    bool natural;            /* dS with respect to the capped score, not to the product */
    bool careful;            /* leave out products with masked positions */
    bool masked;             /* whether there were any */
    const void *lse, *delta; /* real [rows] of the whole problem */

    /* the thread's scratch */
    char *k, *v, *dk, *dv, *qt, *dot, *q, *d_o, *s, *dp, *products, *keep, *lane_lse, *lane_delta, *ones, *dqt;
    double *sums;
    unsigned char *visible;

    /* The row block at hand: rows first_row .. last_row-1 in `strips` strips. */
    int64_t first_row, last_row;
    int strips;
    attn_rows_mask mask[ATTN_ROW_BLOCK]; /* of each strip */
} attn_grad_run;

/* Points into the workspace; kv_head, fold and so on are the caller's. */
void attn_grad_run_init(attn_grad_run *r, const attn_backward_plan *plan, const attn_gradients *g, char *workspace,
                        int32_t thread);

/* Keys first .. last-1 into the panels k and v. */
void attn_grad_pack_keys(const attn_grad_run *r, int64_t first, int64_t last);

/* Rows first .. last-1, at most ATTN_ROW_BLOCK: masks, QT, dOT, lse, delta, and q, d_o as rows if wanted. */
void attn_grad_pack_rows(attn_grad_run *r, int64_t first, int64_t last, bool as_rows);

int attn_grad_lanes(const attn_grad_run *r, int strip);

/* The tile of a strip, in r->s or r->dp: real [ATTN_KEY_BLOCK][strip]. */
static inline void *attn_grad_tile_at(const attn_grad_run *r, char *tiles, int strip)
{
    return tiles + (int64_t)strip * ATTN_KEY_BLOCK * r->uk->strip * r->uk->real_size;
}

/* P and dS of a strip for the keys of a block, all.lo (a multiple of ATTN_KEY_BLOCK) .. all.hi-1, whose panels begin
 * at key `panel`. Keys that no row sees get zeros, unless they lie outside *keys, the part of the block that was
 * computed (empty: none). */
void attn_grad_tile_run(attn_grad_run *r, int strip, attn_interval all, int64_t panel, attn_interval *keys);

/* Zeros in both tiles of a strip for the keys of the block outside `keys`. */
void attn_grad_tile_clear(const attn_grad_run *r, int strip, attn_interval all, attn_interval keys);

#endif
