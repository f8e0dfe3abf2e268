/*
 * table_grad.h: the microkernels that the backward pass and dropout add to a table (table.h).
 *
 * The backward pass works on `strips` strips of query rows (a row block) against a block of
 * key_block keys. Three of its products have forms that the table has anyway: S = K QT and dP = V
 * dOT (qk, dp), dQT += K^T dS (pv). New is the form that sums over rows:
 *
 *     S, dP  [key][strip]            a tile, turned into P and dS in place
 *     P, dS  [strip number]          the left factors of `rows`, of all keys of the block, row =
 *                                    strip number * strip + lane; the tiles themselves unless the
 *                                    table splits them
 *     X      [strip number]          rows of dO or Q, the right factors, in the table's form; cols
 *                                    a multiple of `vector`
 *     G      [key][cols]             G += P X: dV += P dO, dK += dS Q
 *
 *            lanes = columns
 *          +-----------------+
 *     key  |   G += P * X    |      in the tables of body.h rows of P are broadcast,
 *          +-----------------+      one vector of X serves MR keys
 *
 * Tables with the bits of scalar: P and dS are [key_block][strip], and each element of G is one
 * chain over the rows of the block. Rows that see none of the keys may be left out: they would add
 * zeros.
 */
#ifndef ATTN_CPU_UKERNEL_GRAD_H
#define ATTN_CPU_UKERNEL_GRAD_H

#include "core/dropout.h"
#include "cpu/ukernel/table.h"

/* Query rows that tables with the bits of scalar sum fresh: a multiple of every strip. */
enum { ATTN_ROW_BLOCK = 96 };

/* Of all tables. */
enum { ATTN_MAX_ROW_BLOCK = 128 };

/* The numbers that turn a tile of scores and of dP into P and dS. */
typedef struct attn_grad_tile {
    double exponent;   /* c: P = 2^((S - lse) c) */
    double factor;     /* of dS */
    const void *lse;   /* real [strip], in units of S; +inf for rows without a visible key */
    const void *delta; /* real [strip] */
    const void *keep;  /* real [key][strip], Z of C11; NULL without dropout */
    void *plain;       /* real [key][strip]: gets dS without the factor; NULL: not wanted */
} attn_grad_tile;

/* Places of a table's own forms of P and dS. A tile's first key is key `at` of the left factors p
 * and ds, and key `done` of dS as pv reads it. Keys from n to the next multiple of key_step become
 * 0. */
typedef struct attn_grad_forms {
    void *p, *ds, *right;
    int64_t at, done;
} attn_grad_forms;

/* The dropout of a tile's lanes. */
typedef struct attn_drop_tile {
    const attn_dropout *dropout;
    int64_t first_key;              /* position of the tile's first key; any, below 2^34 */
    uint64_t query[ATTN_MAX_STRIP]; /* position of each lane's row, below 2^32 */
    uint64_t stream[ATTN_MAX_STRIP];
} attn_drop_tile;

typedef struct attn_ukernel_grad {
    int vector;    /* columns of X and G are a multiple of this */
    /* query rows that `rows` sums fresh: part of the numerics; a multiple of strip */
    int row_block;
    int key_tile;  /* keys of a tile of S and dP; key_block is a multiple of it */
    int key_step;  /* a strip's part of a block begins at a multiple of this; key_block is one */
    int row_step;  /* the rows of `rows` begin and end at multiples of this; strip is one */

    /* Bytes of a strip of X. */
    uint64_t (*x_bytes)(int64_t cols);

    /* Packs both forms of a strip's rows of n columns, `cols` when rounded up: QT as pack_q, and X,
     * without the factor, with zeros beyond n and where row[lane] is NULL. */
    void (*pack_both)(void *qt, void *x, const void *const *row, int64_t stride, int32_t dtype,
                      int64_t n, int64_t cols, double factor);

    /* dP = V dOT: as qk, with the roundings that dP can stand; qk itself in tables with the bits of
     * scalar. */
    void (*dp)(void *dp, const void *v, int64_t at, const void *dot, int64_t dv, int64_t n,
               int lanes);

    /* dot[lane] = sum_c A[c][lane] B[c][lane] for c < d, in chunks as in qk; in tables with the
     * bits of scalar. */
    void (*dots)(void *dot, const void *a, const void *b, int64_t d);

    /* P = 2^(min(S - lse, 0) c); dS = P (dP Z - delta) factor, 0 where P is 0. S becomes P Z, dP
     * becomes dS. In split too, `plain` gets n keys, and may get more of key_tile. */
    void (*softmax)(void *s, void *dp, int64_t n, const attn_grad_tile *tile, int lanes);

    /* dS *= 1 - tanh^2(S scale / cap), where S are products before the score step. A dS of 0 stays
     * 0 for any S, since the position may be masked. */
    void (*softcap)(void *ds, const void *s, int64_t n, double scale, double cap, int lanes);

    /* Turns P and dS of a tile of n keys into the table's own forms. With a tile, s and dp are the
     * input of `softmax`, and are spoilt; without (NULL), they are its output. Both have key_tile
     * rows. The member is NULL if p_bytes is 0: then the tiles are their own forms. */
    void (*split)(const attn_grad_forms *to, void *s, void *dp, int64_t n,
                  const attn_grad_tile *tile);

    /* Sets keys first .. last-1 of a strip's left factor to 0. */
    void (*clear)(void *p, int64_t first, int64_t last);

    /* G[key][c] += sum of P[at + key][row] X[row][c] over rows first .. last-1 for n keys, summed
     * fresh; `at` a multiple of key_step. G and the left factors have room for keys up to the next
     * multiple of key_step, which may be written. */
    void (*rows)(void *g, const void *p, int64_t at, const void *x, int64_t cols, int64_t n,
                 int first, int last);

    /* As clean_v of table.h, of a strip of X, in place: a bit for each column, [strip] times
     * attn_special_words(cols). */
    bool (*clean_x)(void *x, int64_t cols, const attn_specials *found);

    /* `cols` elements of row[i] = those of G[i][cols_pad], for n rows; false if one of them is NaN
     * or Inf. */
    bool (*put)(void *first, int64_t row_stride, int64_t col_stride, int32_t dtype, const void *g,
                int64_t cols_pad, int64_t cols, int64_t n);

    /* tile[key][lane] = Z for n keys, up to key_tile. With `times` the tile is P in the form of
     * softmax, the keys of which from `done` on are multiplied by Z. */
    void (*drop)(void *tile, int64_t done, int64_t n, const attn_drop_tile *lanes, bool times);
} attn_ukernel_grad;

#endif
