/*
 * fold.h: sums for a tensor of gradients whose elements share memory, such as a bias of relative
 * positions: element (b, h, i, j) of the view adds to the sum of its place. Each place is summed in
 * an order that depends on the problem alone: chunks of rows have sums of their own, added in
 * order.
 */
#ifndef ATTN_CPU_FOLD_H
#define ATTN_CPU_FOLD_H

#include "core/problem.h"

/* An owner is a set of (batch, head) that shares memory with no other: a single one where batches
 * and heads lie apart. */
typedef struct attn_fold {
    int64_t chunks;       /* chunks of an owner's rows; 0: no elements share memory */
    int64_t owners[2];    /* along batch and head: the extent, or 1 where elements share memory
                           * along it */
    int64_t span;         /* sums of an owner: one for each place that steps lead to */
    int64_t first;        /* the sum of the owner's element (0, 0, 0, 0) */
    int64_t step[4];      /* from sum to sum along each axis; 0 along axes of owners */
    uint64_t sums_offset; /* double [owners][chunks][span] in the workspace */
} attn_fold;

/* Plans the sums. An owner's rows come in `blocks` blocks, a few of which make a chunk. Where an
 * owner has more than `linear` sums there is one chunk, so that memory stays linear in the
 * lengths. */
attn_fold attn_fold_plan(const attn_tensor *tensor, int64_t blocks, int64_t linear);

static inline int64_t attn_fold_owners(const attn_fold *fold)
{
    return fold->owners[0] * fold->owners[1];
}

/* The (batch, head) of an owner: first .. last-1 of each. */
typedef struct attn_fold_part {
    int64_t b, b_end, h, h_end;
} attn_fold_part;

attn_fold_part attn_fold_owner(const attn_fold *fold, const attn_tensor *tensor, int64_t owner);

/* Sums of a chunk. */
static inline double *attn_fold_sums(const attn_fold *fold, char *workspace, int64_t owner,
                                     int64_t chunk)
{
    return (double *)(void *)(workspace + fold->sums_offset) +
           (owner * fold->chunks + chunk) * fold->span;
}

/* The index of an element's place among the sums of a chunk. */
static inline int64_t attn_fold_at(const attn_fold *fold, int64_t b, int64_t h, int64_t i,
                                   int64_t j)
{
    return fold->first + b * fold->step[0] + h * fold->step[1] + i * fold->step[2] +
           j * fold->step[3];
}

/* Every element of an owner = the sum of its place over all chunks. */
void attn_fold_store(const attn_fold *fold, const attn_tensor *tensor, char *workspace,
                     int64_t owner);

#endif
