/*
 * ukernel.h: THE table of microkernels. One table per instruction set and arithmetic type (f32, f64); the tile loop
 * (cpu/forward.c) calls nothing else and never mentions an instruction set. All members are pure: no allocation, no
 * threads, no state but their arguments.
 *
 * Queries lie along the vector lanes (docs/decisions/001-queries-along-lanes.md). A strip is `strip` query rows; all
 * tiles of a strip have that width:
 *
 *     QT  [d][strip]          Q transposed, packed once per strip
 *     K   [key][d]            rows of a key block, widened to the arithmetic type, contiguous
 *     S   [key][strip]        scores; the softmax turns them into probabilities in place
 *     V   [key][dv_pad]       dv_pad = d_v rounded up to a multiple of `granule`, padding zero
 *     OT  [dv_pad][strip]     O transposed, not yet divided by the row sum
 *     m, l, alpha  [strip]    running maximum, running sum, rescale factor
 *
 *            lanes = queries
 *          +-----------------+              +-----------------+
 *     key  |  S = K * QT     |         c    |  OT += V^T * P  |      maxima, sums and rescaling are
 *          |                 |              |                 |      vertical: no horizontal reductions
 *          +-----------------+              +-----------------+
 *
 * Each score is the sum of chains of ATTN_DOT_CHUNK fused multiply-adds, each block's part of an output one chain over
 * its keys in order, and exp2 is one formula (exp2.h), so every table gives the same bits as scalar.
 * `real` below means the table's arithmetic type.
 */
#ifndef ATTN_CPU_UKERNEL_H
#define ATTN_CPU_UKERNEL_H

#include "core/problem.h"

/* Part of the numerics (docs/numerics.md): changing one changes bits and error. */
enum {
    ATTN_KEY_BLOCK = 64, /* keys per tile, aligned in the sequence: summed fresh, then added once */
    ATTN_DOT_CHUNK = 32  /* products of a score: summed fresh, then added once */
};

enum {
    ATTN_MAX_STRIP = 64,
    ATTN_MAX_GRANULE = 16
};

/* What happens to a tile of scores besides the scale. Absent members are 0 or NULL. */
typedef struct attn_score_tile {
    double scale;   /* > 0, applied first; the lanes of Q carry the sign */
    double softcap; /* 0 = off */
    const void *slope;    /* real [strip]: ALiBi slope of each lane */
    const void *distance; /* real [strip]: position of the lane's diagonal relative to the tile's first key */
    const void *bias;     /* real [key][strip], -inf = masked (also a false boolean mask) */
} attn_score_tile;

typedef struct attn_ukernel {
    const char *name; /* "avx2_f32" */
    int strip;        /* query rows of a strip, a multiple of the vector length, <= ATTN_MAX_STRIP */
    int granule;      /* keys that qk and columns of V that pv handle at once */
    int real_size;    /* sizeof(real) */

    /* dst[row][0 .. cols_pad-1] = src rows widened, columns from cols on zero. Strides in elements of dtype. */
    void (*pack_rows)(void *dst, int64_t cols_pad, const void *src, int64_t row_stride, int64_t col_stride,
                      int32_t dtype, int64_t rows, int64_t cols);

    /* QT[c][lane] = factor * row[lane][c]; lanes whose row is NULL become 0. factor is -1, 0 or 1. */
    void (*pack_q)(void *qt, const void *const *row, int64_t stride, int32_t dtype, int64_t d, double factor);

    /* S[key][lane] = sum_c K[key][c] QT[c][lane] for n keys, rounded up to the granule (K and S have those rows). */
    void (*qk)(void *s, const void *k, const void *qt, int64_t d, int64_t n);

    /* Column `lane` of a bias tile: tile[key][lane] = bias[key], or 0 without a bias, or -inf where mask[key] is 0. bias
     * and mask may be NULL; strides in elements. */
    void (*bias_lane)(void *tile, int lane, int64_t n, const void *bias, int64_t bias_stride, int32_t dtype,
                      const unsigned char *mask, int64_t mask_stride);

    /* Scale, softcap, bias and ALiBi on n rows of S: the score of attn.h in natural units. */
    void (*score)(void *s, int64_t n, const attn_score_tile *tile);

    /* S = -inf where the key (0 .. n-1) is outside lo[lane] <= key < hi[lane]; lo, hi real [strip]. */
    void (*mask)(void *s, int64_t n, const void *lo, const void *hi);

    /* One step of the online softmax over n keys: m' = max(m, max S), alpha = 2^((m - m') c), P = 2^((S - m') c) in
     * place, l = l alpha + sum P. c > 0. Lanes that have seen no key keep m = -inf and P = 0. */
    void (*softmax)(void *s, int64_t n, double c, void *m, void *l, void *alpha);

    /* OT = OT alpha + V^T P over n keys, the products summed fresh first. dv_pad is a multiple of the granule. */
    void (*pv)(void *ot, const void *v, const void *p, int64_t dv_pad, int64_t n, const void *alpha);

    /* The same where V rows may hold NaN or Inf that some lanes must not see: visible[key][lane] bytes. */
    void (*pv_careful)(void *ot, const void *v, const void *p, int64_t dv_pad, int64_t n, const void *alpha,
                       const unsigned char *visible);

    /* False if a lane below `lanes` of OT holds NaN or Inf. */
    bool (*finite)(const void *ot, int64_t dv, int lanes);

    /* row[lane][0 .. dv-1] = OT[c][lane] / divisor[lane], or 0 where the divisor is 0, converted to dtype. */
    void (*store)(void *const *row, int64_t stride, int32_t dtype, const void *ot, int64_t dv, const void *divisor,
                  int lanes);
} attn_ukernel;

/* The tables: attn_ukernel_<isa>_f32 and _f64. ukernels.inc has one line per instruction set. */
#define ATTN_UKERNELS(isa, ISA, features) \
    extern const attn_ukernel attn_ukernel_##isa##_f32, attn_ukernel_##isa##_f64;
#include "cpu/ukernels.inc"
#undef ATTN_UKERNELS

#endif
