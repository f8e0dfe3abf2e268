/*
 * trace_walk.h: the library's walk over tiles in float64 on a small problem, with every number on
 * the way told to a listener. Tiles may be of any size. The order is that of the kernels: a block
 * of rows meets its keys from the first tile to the last; a tile's products are summed afresh and
 * added once.
 */
#ifndef SUPPORT_TRACE_WALK_H
#define SUPPORT_TRACE_WALK_H

#include <stdbool.h>
#include <stdint.h>

/* One head. Arrays are row after row. */
typedef struct trace_head {
    int64_t nq, nk, d, dv;
    const double *scores;    /* [nq][nk] after all steps, -inf where masked */
    const double *q, *k, *v; /* q and k: for the backward pass */
    const double *d_o;       /* [nq][dv]; NULL: no backward pass */
    double scale;
} trace_head;

typedef enum trace_kind { TRACE_SKIP, TRACE_FULL, TRACE_PARTIAL } trace_kind;

/* Rows row .. row + rows - 1 against keys key .. key + keys - 1. */
typedef struct trace_place {
    int64_t row, rows, key, keys;
    trace_kind kind;
} trace_place;

/* A tile of the forward pass. NULL where the tile is skipped. */
typedef struct trace_tile {
    trace_place place;
    const double *scores;         /* [rows][keys] */
    const double *tile_maximum;   /* [rows]: of this tile alone */
    const double *maximum;        /* [rows]: of all tiles so far */
    const double *alpha;          /* [rows]: factor of the earlier sums under the new maximum */
    const double *sum;            /* [rows] */
    const double *before, *after; /* [rows][dv]: O before the division */
} trace_tile;

/* A tile of the backward pass. */
typedef struct trace_grad_tile {
    trace_place place;
    const double *p;       /* [rows][keys]: exp(S - LSE), recomputed */
    const double *dp;      /* [rows][keys]: dO V^T */
    const double *delta;   /* [rows]: dO . O */
    const double *ds;      /* [rows][keys]: P (dP - delta) */
    const double *dq;      /* [rows][d]: so far */
    const double *dk, *dv; /* [keys][d], [keys][dv]: so far */
} trace_grad_tile;

typedef struct trace_listener {
    void *user;
    void (*tile)(void *user, const trace_tile *tile);
    void (*grad_tile)(void *user, const trace_grad_tile *tile);
} trace_listener;

/* Results of the forward pass over some keys. */
typedef struct trace_sums {
    double *o, *lse; /* [nq][dv], [nq]; a row without a key has 0 and -inf */
} trace_sums;

/* Walks over keys first .. end-1 in tiles of `keys`, for blocks of `rows`. False: no memory. */
bool trace_forward(const trace_head *head, int64_t rows, int64_t keys, int64_t first, int64_t end,
                   const trace_listener *listener, const trace_sums *sums);

/* Merges the sums of parts into one: weight[part][row] = exp(lse of the part - lse). */
void trace_merge(const trace_head *head, const trace_sums *parts, int count, double *weight,
                 const trace_sums *whole);

/* Gradients of all: dq [nq][d], dk [nk][d], dv [nk][dv], set to 0 before. */
typedef struct trace_grads {
    double *dq, *dk, *dv;
} trace_grads;
bool trace_backward(const trace_head *head, int64_t rows, int64_t keys, const trace_sums *forward,
                    const trace_listener *listener, const trace_grads *grads);

#endif
