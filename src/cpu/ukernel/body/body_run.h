/*
 * body_run.h: the part of body.h for rows of Q, up to RUN_LANES over keys wherever they lie, or one
 * over keys that lie side by side: scores, softmax and V^T P, block by block. Scores and sums of
 * each row of Q lie side by side, so that little else than keys goes through the caches. Bits are
 * those of qk_softmax and pv_few.
 */
#ifndef RUN_LANES
#define RUN_LANES 1
#endif
#ifndef RUN_DISTANCE
#define RUN_DISTANCE 0
#endif
#ifndef FEW_DISTANCE
#define FEW_DISTANCE 0
#endif
#ifndef RUN_OWN
#define RUN_OWN true
#endif
enum {
    FN(RUN_WIDE) = VL,         /* most vectors of columns of V at a time .. */
    FN(RUN_ORDER) = 2,         /* .. of so many keys, where a row has more */
    FN(RUN_COLUMNS) = 16 * VL, /* most columns of V: pv_few is faster beyond .. */
    FN(RUN_MOST) = (RUN_LANES > 1 ? 2 : 1) * FN(RUN_COLUMNS), /* .. for several rows of 16 bits */
    FN(RUN_Q) = FN(TURNS) * ATTN_DOT_CHUNK * VL, /* elements of Q that are laid aside */
    /* Bytes of V, and of the next block of K, that are fetched before a softmax, which reads
     * nothing */
    FN(RUN_AHEAD) = 2048
};
typedef real FN(run_scores)[ATTN_KEY_BLOCK];
typedef real FN(run_sums)[FN(RUN_MOST)];

/* Lines that are fetched next: those of a row from `at` on, then those of the next rows. */
typedef struct FN(run_soon) {
    const char *at, *end;
    const char *const *row, *const *last;
    int64_t bytes; /* of a row */
} FN(run_soon);

/* Lines FEW_DISTANCE behind the first row, of those that are listed. */
ATTN_INLINE FN(run_soon) FN(run_ahead)(const attn_key_run *run, const char *const *rows,
                                       int64_t bytes)
{
    const int64_t last = run->lanes > 1 ? run->n + run->more - 1 : 0, ahead = FEW_DISTANCE / bytes;
    const char *const *row = rows + (ahead < last ? ahead : last);
    return (FN(run_soon)){*row, *row + bytes, row, rows + last, bytes};
}

#include "cpu/ukernel/body/body_run_codes.h"
#include "cpu/ukernel/body/body_run_few.h"

/* Fetches lines in their order for a step over `bytes` of K or V, whose loads have another one:
 * RUN_DISTANCE ahead, or its own, whose order the processor follows by itself. */
ATTN_INLINE void FN(run_lines)(const char *at, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64) {
        if (RUN_DISTANCE > 0) {
            ATTN_PREFETCH(at + RUN_DISTANCE + i);
        } else {
            ATTN_PREFETCH_NEAR(at + i);
        }
    }
}

/* Scores of n keys of a block for one row. q: elements of Q, as one_keys takes them. */
ATTN_INLINE void FN(run_keys)(real *s, const attn_key_run *run, const char *k, int64_t n,
                              const real *q, const int32_t dtype, const int across)
{
    const int64_t bytes = FN(bytes_of)(run->d, dtype), rows = VL / across;
    attn_soon none = {0};
    for (int64_t key = 0; key < n; key += rows, k += rows * bytes) {
        const char *row[VL];
        FN(run_lines)(k, rows * bytes);
        ATTN_UNROLL for (int i = 0; i < VL / across; i++) row[i] = k + i * bytes;
        FN(one_keys)(s + key, 1, row, n - key < rows ? n - key : rows, q,
                     run->d / (across * ATTN_DOT_CHUNK), &none, dtype, across);
    }
}

/* P of n keys of a row in place of their scores. Returns the factor of earlier sums. */
ATTN_INLINE real FN(run_exponentials)(real *s, int64_t n, real *m, vec c, vec least)
{
    enum { MANY = SIDE * VL };
    const int count = SIDE;
    vec top = v_set1(*m), d[SIDE], p[SIDE];
    real lanes[VL], most = *m;
    for (int64_t key = n; key % MANY != 0; key++) s[key] = -INFINITY;
    for (int64_t key = 0; key < n; key += VL) top = v_max(top, v_load(s + key));
    v_store(lanes, top);
    for (int i = 0; i < VL; i++) most = lanes[i] > most ? lanes[i] : most;
    const vec used = v_set1(most < -REAL_MAX ? 0 : most);
    for (int64_t key = 0; key < n; key += MANY) {
        EACH d[k] = v_sub(v_load(s + key + k * VL), used);
        FN(exp2_each)(p, d, c, least, count);
        EACH v_store(s + key + k * VL, p[k]);
    }
    v_store(lanes, FN(exp2)(v_sub(v_set1(*m), used), c, least));
    *m = most;
    return lanes[0];
}

/* One step of the softmax for n keys: P in place of scores, and the factors of earlier sums. A
 * function of its own, since its constants would take registers of the products. */
static ATTN_NOINLINE void FN(run_softmax)(FN(run_scores) * s, int64_t n, double c_,
                                          const attn_running *state, real *alpha, int rows)
{
    const vec c = v_set1((real)c_), least = v_set1((real)(EXP2_MIN / c_));
    real *m = state->m, *l = state->l, sum[RUN_LANES] = {0};
    for (int r = 0; r < rows; r++) alpha[r] = FN(run_exponentials)(s[r], n, m + r, c, least);
    for (int64_t key = 0; key < n; key++) { /* rows side by side: a sum waits for itself */
        sum[0] += s[0][key];
        ATTN_UNROLL for (int r = 1; r < RUN_LANES && rows > 1; r++) sum[r] += s[r][key];
    }
    for (int r = 0; r < rows; r++) {
        real lanes[VL];
        v_store(lanes, v_fma(v_set1(l[r]), v_set1(alpha[r]), v_set1(sum[r])));
        l[r] = lanes[0];
    }
}

/* x += V^T P of n keys of a block for one row, `width` vectors of columns from column c on. */
ATTN_INLINE void FN(run_columns)(real *x, const char *v, int64_t bytes, const real *p, int64_t n,
                                 const int32_t dtype, const int width)
{
    vec sum[FN(RUN_WIDE)];
    ATTN_UNROLL for (int i = 0; i < width; i++) sum[i] = v_load(x + i * VL);
    for (int64_t key = 0; key < n; key++, v += bytes) {
        const vec one = v_set1(p[key]);
        ATTN_UNROLL for (int i = 0; i < width; i++) sum[i] =
            v_fma(FN(load_row)(v, i * VL, dtype), one, sum[i]);
    }
    ATTN_UNROLL for (int i = 0; i < width; i++) v_store(x + i * VL, sum[i]);
}

/* run_columns for as many groups of `width` vectors as are left from column c on. Returns the first
 * column left. */
ATTN_INLINE int64_t FN(run_groups)(real *x, int64_t c, const attn_key_run *run, const char *v,
                                   const real *p, int64_t n, const int32_t dtype, const int width)
{
    for (; c + width * VL <= run->dv; c += width * VL) {
        FN(run_columns)(x + c, v + FN(bytes_of)(c, dtype), FN(bytes_of)(run->dv, dtype), p, n,
                        dtype, width);
    }
    return c;
}

/* x += V^T P of n keys of a block for one row. */
ATTN_INLINE void FN(run_values)(real *x, const attn_key_run *run, const char *v, const real *p,
                                int64_t n, const int32_t dtype)
{
    const int64_t vectors = run->dv / VL;
    const bool one_group = vectors <= FN(RUN_WIDE) && (vectors & (vectors - 1)) == 0;
    const int64_t order = one_group ? n : FN(RUN_ORDER), bytes = FN(bytes_of)(run->dv, dtype);
    for (int64_t key = 0; key < n; key += order, v += order * bytes) {
        const int64_t keys = n - key < order ? n - key : order;
        int64_t c = 0;
        if (RUN_DISTANCE > 0 && dtype != FN(OWN)) { /* rows of f32 gain nothing */
            FN(run_lines)(v, keys * bytes);
        }
        ATTN_UNROLL for (int width = FN(RUN_WIDE); width > 0; width /= 2) c =
            FN(run_groups)(x, c, run, v, p + key, keys, dtype, width);
    }
}

/* O = O alpha + V^T P over n keys from `key` on; O = V^T P if they are the first ones. */
ATTN_INLINE void FN(run_add)(FN(run_sums) * o, const attn_key_run *run, int64_t key,
                             FN(run_scores) * p, int64_t n, const real *alpha, bool first,
                             FN(run_soon) *soon, const int32_t dtype, const int rows)
{
    FN(run_sums) x[RUN_LANES];
    ATTN_UNROLL for (int r = 0; r < rows; r++) {
        for (int64_t c = 0; c < run->dv; c += VL) v_store(x[r] + c, v_set1(0));
    }
    if (rows > 1) {
        FN(few_run_add)(x, run, key, p, n, soon);
    } else {
        FN(run_values)(x[0], run, run->v[0] + key * FN(bytes_of)(run->dv, dtype), p[0], n, dtype);
    }
    ATTN_UNROLL for (int r = 0; r < rows; r++) {
        for (int64_t c = 0; c < run->dv; c += VL) {
            const vec y = v_load(x[r] + c);
            v_store(o[r] + c, first ? y : v_fma(v_load(o[r] + c), v_set1(alpha[r]), y));
        }
    }
}

/* Lays elements of Q side by side, as run_keys or few_run_keys take them. */
ATTN_INLINE void FN(run_q)(real *q, const attn_key_run *run, const int across, const int rows)
{
    if (rows == 1) {
        FN(one_q)(q, run->qt, run->d, across);
        return;
    }
    for (int64_t i = 0; i < run->d; i++) {
        v_store4(q + i * rows, v_load4((const real *)run->qt + i * STRIP));
    }
}

/* Sums so far of each row, from OT or back. */
ATTN_INLINE void FN(run_sums_in)(FN(run_sums) * o, const real *ot, int64_t dv, const int rows)
{
    for (int64_t c = 0; c < dv && rows == 1; c++) o[0][c] = ot[c * STRIP];
    for (int64_t c = 0; c < dv && rows > 1; c += VL, ot += VL * STRIP) {
        vec x[4];
        FN(from_quads)(x, (const real (*)[4])ot, STRIP / 4);
        ATTN_UNROLL for (int r = 0; r < rows; r++) v_store(o[r] + c, x[r]);
    }
}

ATTN_INLINE void FN(run_sums_out)(real *ot, FN(run_sums) * o, int64_t dv, const int rows)
{
    for (int64_t c = 0; c < dv && rows == 1; c++) ot[c * STRIP] = o[0][c];
    for (int64_t c = 0; c < dv && rows > 1; c += VL, ot += VL * STRIP) {
        vec x[4];
        ATTN_UNROLL for (int r = 0; r < 4; r++) x[r] = r < rows ? v_load(o[r] + c) : v_set1(0);
        FN(quads)((real (*)[4])ot, STRIP / 4, x);
    }
}

/* Fetches the first bytes of V from key `key` on, and of K behind n keys. */
ATTN_INLINE void FN(run_first)(const attn_key_run *run, int64_t key, int64_t n, int64_t k_bytes,
                               int64_t v_bytes, const int rows)
{
    if (rows == 1) {
        for (int i = 0; i < FN(RUN_AHEAD); i += 64) {
            ATTN_PREFETCH(run->v[0] + key * v_bytes + i);
            ATTN_PREFETCH(run->k[0] + (key + n) * k_bytes + i);
        }
        return;
    }
    for (int64_t i = key; i < run->n && (i - key) * v_bytes < FN(RUN_AHEAD); i++) {
        for (int64_t byte = 0; byte < v_bytes; byte += 64) ATTN_PREFETCH(run->v[i] + byte);
    }
}

/* Blocks of keys in turn: for one row, by `across` chunks of a row of K, or for several. */
ATTN_INLINE void FN(run_blocks)(real *ot, const attn_key_run *run, double c,
                                const attn_running *state, bool first, const int32_t dtype,
                                const int across, const int rows)
{
    const int64_t k_bytes = FN(bytes_of)(run->d, dtype), v_bytes = FN(bytes_of)(run->dv, dtype);
    FN(run_soon) k_soon = FN(run_ahead)(run, run->k, k_bytes),
                 v_soon = FN(run_ahead)(run, run->v, v_bytes);
    FN(run_scores) s[RUN_LANES];
    FN(run_sums) o[RUN_LANES];
    real alpha[RUN_LANES], q_room[FN(RUN_Q)];
    const bool as_it_is = rows == 1 && across == 1;
    const real *q = as_it_is ? run->qt : q_room;
    if (!as_it_is) {
        FN(run_q)(q_room, run, across, rows);
    }
    if (!first) {
        FN(run_sums_in)(o, ot, run->dv, rows);
    }
    for (int64_t key = 0, n; key < run->n; key += n, first = false) {
        n = run->n - key < ATTN_KEY_BLOCK ? run->n - key : ATTN_KEY_BLOCK;
        if (rows > 1) {
            FN(few_run_keys)(s, run, key, n, q, &k_soon);
        } else {
            FN(run_keys)(s[0], run, run->k[0] + key * k_bytes, n, q, dtype, across);
        }
        FN(run_first)(run, key, n, k_bytes, v_bytes, rows);
        FN(run_softmax)(s, n, c, state, alpha, rows);
        FN(run_add)(o, run, key, s, n, alpha, first, &v_soon, dtype, rows);
    }
    FN(run_sums_out)(ot, o, run->dv, rows);
}

/* For one row. */
ATTN_INLINE void FN(run_of)(real *ot, const attn_key_run *run, double c, const attn_running *state,
                            bool first, const int32_t dtype)
{
    switch (FN(chunks_across)(run->d, run->n)) {
    case 1: FN(run_blocks)(ot, run, c, state, first, dtype, 1, 1); break;
    case 2: FN(run_blocks)(ot, run, c, state, first, dtype, 2, 1); break;
    case 4: FN(run_blocks)(ot, run, c, state, first, dtype, 4, 1); break;
    default: FN(run_blocks)(ot, run, c, state, first, dtype, 8, 1);
    }
}

static void FN(run_rows)(void *ot, const attn_key_run *run, double c, const attn_running *state,
                         bool first)
{
    if (run->lanes > 1) {
        FN(run_blocks)(ot, run, c, state, first, run->dtype, 1, RUN_LANES);
        return;
    }
    switch (REAL_BITS == 32 ? run->dtype : FN(OWN)) {
    case ATTN_F16: FN(run_of)(ot, run, c, state, first, ATTN_F16); return;
    case ATTN_BF16: FN(run_of)(ot, run, c, state, first, ATTN_BF16); return;
    default: FN(run_of)(ot, run, c, state, first, FN(OWN));
    }
}

/* True for codes and several rows of Q, where groups are whole chunks. */
static bool FN(takes_run_codes)(const attn_key_run *run)
{
#ifdef RUN_CODES
    return run->lanes > 1 && run->d % (run->k_groups * ATTN_DOT_CHUNK) == 0 &&
           run->dv % (run->v_groups * ATTN_DOT_CHUNK) == 0;
#else
    (void)run;
    return false;
#endif
}

static bool FN(takes_run)(const attn_key_run *run)
{
    const int32_t dtype = run->dtype;
    const bool several = run->lanes > 1, long_rows = several && dtype != FN(OWN);
    return (!attn_is_code(dtype) || FN(takes_run_codes)(run)) &&
           (!several || dtype != FN(OWN) || RUN_OWN) && (!run->apart || several) &&
           FN(takes_rows)(dtype, run->d) && FN(takes_rows)(dtype, run->dv) &&
           run->d % ATTN_DOT_CHUNK == 0 &&
           run->dv <= (long_rows ? FN(RUN_MOST) : FN(RUN_COLUMNS)) &&
           (!several || (run->lanes <= RUN_LANES && run->d * RUN_LANES <= FN(RUN_Q)));
}
