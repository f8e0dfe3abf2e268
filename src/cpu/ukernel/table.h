/*
 * table.h: THE table of microkernels. One table per instruction set and arithmetic; the tile loop
 * (cpu/forward/forward.c) calls nothing else and never mentions an instruction set. All members are
 * pure: no allocation, no threads, no state but their arguments.
 *
 * Queries lie along the vector lanes (docs/decisions/001-queries-along-lanes.md). A strip is
 * `strip` query rows; all tiles of a strip have that width. `real` is the type of sums and running
 * state (f32 or f64); panels of inputs are the table's own business. Those of body.h and scalar:
 *
 *     QT  [d][strip]          Q transposed, packed once per strip
 *     K   [key][d]            rows of a key block, widened to real
 *     S   [key][strip]        scores (every table)
 *     P   = S                 probabilities, in place
 *     V   [key][dv_pad]       dv_pad = d_v rounded up to a multiple of `granule`, padding zero
 *     OT  [dv_pad][strip]     O transposed, not yet divided by the row sum (every table)
 *     attn_running [strip]    reference (running maximum), running sum, rescale factor
 *                             (every table)
 *
 *            lanes = queries
 *          +-----------------+              +-----------------+
 *     key  |  S = K * QT     |         c    |  OT += V^T * P  |      maxima, sums and rescaling
 *          |                 |              |                 |      are vertical: no horizontal
 *          +-----------------+              +-----------------+      reductions
 *
 * In those tables each score is the sum of chains of ATTN_DOT_CHUNK fused multiply-adds, each
 * block's part of an output one chain over its keys in order, and exp2 is one formula (exp2.h), so
 * every one of them gives the same bits as scalar.
 */
#ifndef ATTN_CPU_UKERNEL_H
#define ATTN_CPU_UKERNEL_H

#include "core/codes.h"

/* Part of the numerics (docs/numerics.md): changing one changes bits and error. */
enum {
    ATTN_KEY_BLOCK = 64, /* keys per tile, aligned in the sequence: summed fresh, then added once */
    ATTN_DOT_CHUNK = 32  /* products of a score: summed fresh, then added once */
};

/* Limits of all tables. */
enum {
    ATTN_MAX_STRIP = 64,
    ATTN_MAX_KEY_BLOCK = 512,
    ATTN_MAX_KEY_TILE = 64,
    ATTN_MAX_KEY_GROUPS = 16 /* of columns of a row of codes, where members take rows */
};

/* A list of rows of K or V that are read soon, a hint. Members prefetch their cache lines between
 * their own steps (attn_fetch_soon), evenly, so that the memory is never idle. The list is cut into
 * runs, from which rows come in turn: processors follow several runs farther than one. */
typedef struct attn_soon {
    const char *const *row; /* place of the next row in the list; NULL behind the last */
    const char *const *end_of_one, *const *end_of_all; /* ends of the first run, and of the last */
    const char *const *then, *const *then_end; /* one more run, after all others; or NULL */
    int64_t run, back, bytes; /* steps to the next run, and back to the first; bytes of a row */
    const char *at, *end;     /* the lines left of the row at hand */
    /* lines to fetch for each element of K or V that a member is done with, lines that are due: in
     * units of 1 / ATTN_SOON_LINE */
    int64_t each, due;
} attn_soon;

enum { ATTN_SOON_LINE = 1 << 16 };

/* Rows of a tensor for packing. Strides in elements of dtype. */
typedef struct attn_rows {
    const void *data;
    int64_t row_stride, col_stride;
    int32_t dtype;
    attn_soon *soon;      /* rows to fetch meanwhile, or NULL */
    attn_row_codes codes; /* scales and shifts, if dtype is a type of codes */
} attn_rows;

/* Changes of a tile of scores besides the scale. Absent members are 0 or NULL. */
typedef struct attn_score_tile {
    double scale;         /* > 0, applied first; the lanes of Q carry the sign */
    double softcap;       /* 0 = off */
    const void *slope;    /* real [strip]: ALiBi slope of each lane */
    /* real [strip]: position of the lane's diagonal relative to the tile's first key */
    const void *distance;
    const void *bias;     /* real [key][strip], -inf = masked (also a false boolean mask) */
} attn_score_tile;

/* The rows of the bias and mask tensors for the lanes of a tile. */
typedef struct attn_bias_rows {
    /* each lane's, for the tile's first key; all NULL without a bias */
    const void *bias[ATTN_MAX_STRIP];
    const void *mask[ATTN_MAX_STRIP]; /* likewise */
    /* from key to key, in elements; 0 without, or if keys share one */
    int64_t bias_stride, mask_stride;
    int32_t dtype, mask_dtype;                 /* of the bias, of the mask */
    int64_t mask_first; /* the tile's first key, counted from that of the mask's element */
} attn_bias_rows;

struct attn_ukernel_grad;

/* Classes of result bits: tables of one class give the same bits. */
enum {
    ATTN_BITS_SCALAR,
    ATTN_BITS_AMX,
    ATTN_BITS_UNFUSED, /* products of sums are rounded before they are added */
    ATTN_BITS_PAIRS,   /* dot products of pairs of bf16 (avx512bf16) */
    ATTN_BITS_ODD_PAIRS, /* those that are rounded to odd (neonbf16) */
    ATTN_BITS_CODES      /* dot products of pairs of codes (avx512bf16) */
};

/* Losses, as a share of |x y|, of a product of two inputs and of one of P or dS with an input:
 * roundings of the factors. The rounding of sums comes on top. */
typedef struct attn_losses {
    double inputs, weights;
} attn_losses;

/* Numbers of a panel that are not finite, as words of bits: +inf in plus, -inf in minus, NaN in
 * both. */
typedef struct attn_specials {
    uint64_t *plus, *minus;
} attn_specials;

static inline int64_t attn_special_words(int64_t bits)
{
    return (bits + 63) / 64;
}

/* Data read after a tile's softmax, a hint: a table may fetch it meanwhile. Keys at .. at+n-1 of
 * one panel or of the other; no keys: no hint. */
typedef struct attn_ahead {
    const void *k, *v;
    int64_t at, n;
    int64_t cols; /* of the panel: d or dv_pad */
    attn_soon *soon; /* rows to fetch as well, or NULL */
} attn_ahead;

/* The running state of a strip, real [strip] each. */
typedef struct attn_running {
    void *m;     /* the reference that probabilities are relative to */
    void *l;     /* sum of probabilities */
    void *alpha; /* factor of OT before the next products are added */
    /* maximum of all scores so far: NULL if not asked for; m in tables whose reference does not
     * lag */
    void *top;
    attn_ahead ahead;
} attn_running;

/* A sum over some keys of a strip. */
typedef struct attn_part {
    double *lse;         /* [strip]: logarithms of the sums of exp(s) */
    double *rest;        /* [strip]: the rest of each logarithm beyond lse */
    void *o;             /* real [dv][strip] */
    const void *divisor; /* real [strip], or NULL */
} attn_part;

/* Keys at .. at+n-1 of a K panel, and the strip to multiply with them. With `rows`, n rows of K
 * where they are (takes_rows), and k is the room of a panel. */
typedef struct attn_keys {
    const void *k, *qt;
    int64_t d, at, n;
    const char *const *rows;
    int32_t dtype; /* of rows */
} attn_keys;

/* Keys of a call of run_rows: n rows of K, of d columns, and of V, of dv, of one dtype, columns
 * side by side. The lists go on with `more` rows that are read after these, a hint. With one lane
 * they have the first key alone, and rows lie side by side. */
typedef struct attn_key_run {
    const char *const *k, *const *v;
    const void *qt;
    int64_t d, dv, n, more;
    /* of codes, for each key and each group of columns; a shift of -0 changes no value. Groups of a
     * row, 1 unless codes */
    const float *k_scale, *k_shift, *v_scale, *v_shift;
    int64_t k_groups, v_groups;
    int32_t dtype;
    int lanes;      /* of QT */
    bool apart;     /* rows do not lie side by side */
    bool scattered; /* their distance changes every few rows */
} attn_key_run;

/* Keys from `at` on of a V panel; or, with a dtype, `count` rows of V where they are (takes_rows),
 * keys beyond which are zero. */
typedef struct attn_values {
    const void *v;
    int64_t at;
    const char *const *rows;
    int64_t count, dv, dv_pad;
    attn_soon *soon; /* rows to fetch meanwhile, or NULL */
    int32_t dtype;   /* of rows; 0: a panel */
    /* of rows of codes, for each key and each group of columns; without shifts NULL */
    const float *scale, *shift;
    int64_t groups, group; /* of a row; columns of one */
} attn_values;

/* Sums of V^T P as rows, of dv columns each. */
typedef struct attn_row_sums {
    void *sum;           /* real [strip][dv]: the sums over the keys before */
    const void *alpha;   /* real [strip]: their factor before more is added; NULL: there are none */
    void *const *o;      /* rows of O, columns side by side, behind the last keys; else NULL */
    const void *divisor; /* real [strip], with o */
    int32_t o_dtype;
    int64_t dv;
} attn_row_sums;

/* Rows of V where they are (takes_rows), n keys for each of some lanes, and rows of O in the same
 * type; columns side by side. */
typedef struct attn_own {
    const char *const *v; /* [n][ATTN_MAX_STRIP] */
    void *const *o;
    int64_t n, dv;
    int32_t dtype, o_dtype;
    int lanes;
} attn_own;

/* `lanes` of a member: number of the strip's rows. Lanes beyond need no results; their contents are
 * undefined, except where pack_q writes 0. */
typedef struct attn_ukernel {
    const char *name;                     /* "avx2_f32" */
    const struct attn_ukernel_grad *grad; /* members for backward and dropout (table_grad.h) */
    int bits;                             /* class of result bits */
    attn_losses losses;
    int vector_bits;   /* width of its multiply-adds */
    int tile_products; /* products of bf16 tiles in each product; 0: products are multiply-adds */
    int pair_products; /* dot products of bf16 pairs in each product; 0: none */
    /* query rows of a strip, a multiple of the vector length, <= ATTN_MAX_STRIP */
    int strip;
    int granule;          /* OT has d_v rounded up to a multiple of this many rows */
    int key_block;        /* keys that pv sums fresh, <= ATTN_MAX_KEY_BLOCK; part of the numerics */
    int segment;          /* keys of a segment (core/segment.h); part of the numerics */
    int key_tile;         /* keys per tile of scores; key_block is a multiple of it */
    /* tiles begin at multiples of this; pv reads keys in multiples, and keys beyond n with weight
     * 0 */
    int key_step;
    int real_size;        /* sizeof(real) */
    /* rows of reals side by side are a K or V panel (d_v = dv_pad); keys beyond n are not read */
    bool rows_are_panels;
    /* rows of K side by side, in the type of the table's inputs, are a panel as well where columns
     * are a multiple of k_columns and keys of k_keys; 0: never */
    int k_columns, k_keys;
    bool lags;            /* m may lag behind the maximum: top is an array of its own */
    /* softmax counts on flush-to-zero, which its caller sets (attn_host_flush) */
    bool flushes;

    /* Called around all other members, on the same thread: the state of the processor that the
     * table needs. */
    void (*begin)(void);
    void (*end)(void);

    /* Bytes of the panels: K and V of a key block, QT of a strip, and P of a tile (0: P is in place
     * of S). */
    uint64_t (*k_bytes)(int64_t d);
    uint64_t (*v_bytes)(int64_t dv_pad);
    uint64_t (*q_bytes)(int64_t d);
    uint64_t (*p_bytes)(void);

    /* True for rows of so many columns, side by side, that qk_softmax and pv_few read where they
     * are, for strips of few_lanes rows. qk_softmax takes no codes. */
    bool (*takes_rows)(int32_t dtype, int64_t cols);

    /* Packs keys at .. at+n-1 of the K panel, of the V panel. */
    void (*pack_k)(void *k, int64_t at, const attn_rows *src, int64_t n, int64_t d);
    void (*pack_v)(void *v, int64_t at, const attn_rows *src, int64_t n, int64_t dv,
                   int64_t dv_pad);

    /* QT[c][lane] = factor * row[lane][c]; lanes whose row is NULL become 0. factor is -1, 0 or 1.
     * row[lanes ..] is NULL. Lanes that qk(lanes) does not read may stay unwritten. */
    void (*pack_q)(void *qt, const void *const *row, int64_t stride, int32_t dtype, int64_t d,
                   double factor, int lanes);

    /* S[key][lane] = sum_c K[at + key][c] QT[c][lane] for n keys. May write rows of S beyond n, up
     * to key_tile. */
    void (*qk)(void *s, const void *k, int64_t at, const void *qt, int64_t d, int64_t n, int lanes);

    /* qk straight from n rows of codes, or NULL. False, and nothing done, for rows that it does not
     * take: another form of rows than its own, too many lanes. */
    bool (*qk_codes)(void *s, const attn_rows *k, const void *qt, int64_t d, int64_t n, int lanes);

    /* qk over the rows of `keys` (takes_rows) for at most few_lanes lanes, or NULL. */
    void (*qk_rows)(void *s, const attn_keys *keys, int lanes, attn_soon *soon);

    /* real to[0 .. n-1] = elements that are `stride` apart. NULL where pv_few takes no codes. */
    void (*widen)(void *to, const void *from, int64_t stride, int32_t dtype, int64_t n);

    /* tile[key][lane] = the lane's bias for n keys, up to key_tile, or 0 without a bias; -inf where
     * its mask is 0. */
    void (*bias)(void *tile, int64_t n, const attn_bias_rows *rows);

    /* Scale, softcap, bias and ALiBi on n rows of S: the score of attn.h in natural units. */
    void (*score)(void *s, int64_t n, const attn_score_tile *tile, int lanes);

    /* S = -inf where the key (0 .. n-1) is outside lo[lane] <= key < hi[lane]; lo, hi real
     * [strip]. */
    void (*mask)(void *s, int64_t n, const void *lo, const void *hi, int lanes);

    /* One step of the online softmax over n keys of S, the first of which is key `done` of P: top'
     * = max(top, max S), m' the new reference, a = 2^((m - m') c), P = 2^((S - m') c), l' = l a +
     * sum P. c > 0. alpha = a if done is 0, else alpha a, and the `done` earlier keys of P are
     * scaled by a. m' = top', or below it by no more than a table's own slack; it never falls.
     * Lanes that have seen no key keep m = -inf and P = 0. P = S, and done = 0, if p_bytes is 0. s
     * has key_tile rows; those beyond n may be written, and so may keys of P up to the next
     * multiple of key_step. */
    void (*softmax)(void *p, int64_t done, void *s, int64_t n, double c, const attn_running *state,
                    int lanes);

    /* qk and softmax in turn over tiles of key_tile keys, for scores that are the plain products. s
     * has room for two tiles if p_bytes is not 0. The hint of `state` is for after the last
     * tile. */
    void (*qk_softmax)(void *p, int64_t done, void *s, const attn_keys *keys, double c,
                       const attn_running *state, int lanes);

    /* OT = OT alpha + V^T P over keys at .. at+n-1 of the V panel, the products summed fresh first.
     * Without alpha (NULL), OT = V^T P. */
    void (*pv)(void *ot, const void *v, int64_t at, const void *p, int64_t dv_pad, int64_t n,
               const void *alpha, int lanes);

    /* pv for strips of at most few_lanes rows, from rows where they are or, where rows_are_panels,
     * from panels. Bits are those of pv. Unused where few_lanes is 0. */
    int few_lanes;
    void (*pv_few)(void *ot, const attn_values *v, const void *p, int64_t n, const void *alpha,
                   int lanes);

    /* qk_softmax and pv_few, block by block, for a strip of few rows, from the first key of a block
     * on; or NULL. `first`: OT holds no sum yet. The bits are the same. takes_run: whether it takes
     * keys of that form, and so many lanes; the lists may be NULL. */
    bool (*takes_run)(const attn_key_run *run);
    void (*run_rows)(void *ot, const attn_key_run *run, double c, const attn_running *state,
                     bool first);

    /* pv with sums as rows, for panels whose columns are a multiple of row_columns; 0: never. True
     * behind the last keys where O = sums / divisor is stored, too, as finite numbers; else the
     * sums are. Bits are those of pv and store. */
    int row_columns;
    bool (*pv_rows)(const attn_row_sums *to, const void *v, int64_t at, const void *p, int64_t n,
                    int lanes);

    /* O = sums / divisor, as store has it. False if a sum is not finite. */
    bool (*end_rows)(const attn_row_sums *to, int lanes);

    /* For strips whose rows have keys of their own (attn_own), or NULL. own_qk: S[lane] = sum_c
     * KT[c][lane] QT[c][lane], with KT a key of each lane, as pack_q lays out rows: the bits of
     * qk. */
    void (*own_qk)(void *s, const void *kt, const void *qt, int64_t d, int lanes);

    /* own_qk for all of some keys, or NULL. KT has each key once: the `keys` of them, 2 or
     * 4, that as many rows side by side have lie in the lanes of these. More than four lanes. */
    void (*side_qk)(void *s, const void *kt, const void *qt, int64_t d, int keys, int lanes);

    /* True if the scores of lanes with one key each are surely finite, for rows that takes_rows
     * allows; or NULL. */
    bool (*own_fits)(const void *const *q, const void *const *keys, int32_t dtype, int64_t d,
                     int lanes);

    /* O = V^T P / divisor over few keys: the bits of pv and store. False if a sum is not finite; O
     * is undefined then. Where p_bytes is not 0 P may be NULL: one key each, of weight 1. */
    bool (*own_pv)(const attn_own *rows, const void *p, const void *divisor);

    /* Copies n keys of a V panel, on to a multiple of key_step, with 0 in place of numbers that are
     * not finite. Notes these in `found`, a bit for each key of the panel, [dv_pad] times
     * attn_special_words(key_block). False: there are none. `to` may be v. */
    bool (*clean_v)(void *to, const void *v, int64_t at, int64_t n, int64_t dv_pad,
                    const attn_specials *found);

    /* False if a lane below `lanes` of OT holds NaN or Inf. */
    bool (*finite)(const void *ot, int64_t dv, int lanes);

    /* row[lane][0 .. dv-1] = OT[c][lane] / divisor[lane], or 0 where the divisor is 0, converted to
     * dtype. No divisor (NULL): 1. */
    void (*store)(void *const *row, int64_t stride, int32_t dtype, const void *ot, int64_t dv,
                  const void *divisor, int lanes);

    /* lse[lane] and rest[lane] of m unit + ln l, or -inf and 0 where l is 0, of `lanes` lanes;
     * -inf beyond. */
    void (*logs)(double *lse, double *rest, const attn_running *state, double unit, int lanes);

    /* Joins a part to a node (core/segment.h): with x = ot / divisor, 0 where the divisor is 0, or
     * ot without a divisor (NULL), node O = fma(x, b, O a) for columns below dv. */
    void (*join)(const attn_part *node, const attn_part *part, int64_t dv, int lanes);

    /* node O = x, node lse = part lse. */
    void (*copy)(const attn_part *node, const attn_part *part, int64_t dv, int lanes);
} attn_ukernel;

/* The tables; tables.inc has one entry per instruction set. */
#define ATTN_TABLES(...) extern const attn_ukernel __VA_ARGS__;
#define ATTN_ISA(name, needs, ...)
#include "cpu/ukernel/tables.inc"
#undef ATTN_TABLES
#undef ATTN_ISA

/* CMakeLists.txt takes such options of a project around this one back. */
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(_M_FP_FAST) || \
    (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "libattn computes with NaN and infinities, in a fixed order: compile it with -fno-fast-math"
#endif

#endif
