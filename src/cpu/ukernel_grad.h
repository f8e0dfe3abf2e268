/*
 * ukernel_grad.h: the microkernels that the backward pass and dropout add to a table (ukernel.h). Called by
 * cpu/grad_tile.c and, for dropout, cpu/forward.c.
 *
 * The backward pass works on `strips` strips of query rows (a row block) against a block of keys. Its products of the
 * table's own two forms are S = K QT and dP = V dOT (qk), dQT += K^T dS (pv); what is new is the form that sums over
 * rows:
 *
 *     P, dS  [strip number][ATTN_KEY_BLOCK][strip]   tiles side by side, row = strip number * strip + lane
 *     X      [row][cols]                             rows of dO or Q, as they are; cols a multiple of `vector`
 *     G      [key][cols]                             G += P X: dV += P dO, dK += dS Q
 *
 *            lanes = columns
 *          +-----------------+
 *     key  |   G += P * X    |      rows of P are broadcast, one vector of X serves MR keys
 *          +-----------------+
 *
 * All tables that have these members give the same bits: each element of G is one chain over the rows of the block.
 */
#ifndef ATTN_CPU_UKERNEL_GRAD_H
#define ATTN_CPU_UKERNEL_GRAD_H

#include "core/dropout.h"
#include "cpu/ukernel.h"

/* Query rows summed fresh, then added once: part of the numerics. A multiple of every strip. */
enum { ATTN_ROW_BLOCK = 96 };

/* What a tile of scores and of dP is turned into P and dS with. */
typedef struct attn_grad_tile {
    double exponent;   /* c: P = 2^((S - lse) c) */
    double factor;     /* of dS */
    const void *lse;   /* real [strip], in units of S; +inf for rows without a visible key */
    const void *delta; /* real [strip] */
    const void *keep;  /* real [key][strip], Z of C11; NULL without dropout */
} attn_grad_tile;

/* The dropout of a tile's lanes. */
typedef struct attn_drop_tile {
    const attn_dropout *dropout;
    int64_t first_key;              /* of the tile, in its sequence */
    uint64_t query[ATTN_MAX_STRIP]; /* of each lane, below 2^32 */
    uint64_t stream[ATTN_MAX_STRIP];
} attn_drop_tile;

typedef struct attn_ukernel_grad {
    int vector; /* elements of a vector */

    /* dot[lane] = sum_c A[c][lane] B[c][lane] for c < d, in chunks as in qk. */
    void (*dots)(void *dot, const void *a, const void *b, int64_t d);

    /* P = 2^(min(S - lse, 0) c); dS = P (dP Z - delta) factor, 0 where P is 0. S becomes P Z, dP becomes dS. */
    void (*softmax)(void *s, void *dp, int64_t n, const attn_grad_tile *tile);

    /* dS *= 1 - tanh^2(S scale / cap), where S are products before the score step. */
    void (*softcap)(void *ds, const void *s, int64_t n, double scale, double cap);

    /* G[key][c] += sum_row P[key][row] X[row][c] for n keys, summed fresh. G and the tiles have room for keys up to the
     * next multiple of 8, which may be written. */
    void (*rows)(void *g, const void *p, const void *x, int64_t cols, int64_t n, int strips);

    /* The same where X may hold NaN or Inf in rows that some keys must not see: visible, bytes laid out as P. */
    void (*rows_careful)(void *g, const void *p, const void *x, int64_t cols, int64_t n, int strips,
                         const unsigned char *visible);

    /* `cols` elements of row[i] = those of G[i][cols_pad], for n rows; false if one of them is NaN or Inf. */
    bool (*put)(void *first, int64_t row_stride, int64_t col_stride, int32_t dtype, const void *g, int64_t cols_pad,
                int64_t cols, int64_t n);

    /* tile[key][lane] = Z, or with `times` the product of Z and what is there. */
    void (*drop)(void *tile, int64_t n, const attn_drop_tile *lanes, bool times);
} attn_ukernel_grad;

#endif
