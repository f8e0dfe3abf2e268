/*
 * body.h: every microkernel once, for any vector width and for f32 or f64. A "template" by
 * inclusion: an instruction set's file defines the parameters, includes this once per type, and
 * gets one static const table.
 *
 *   ISA         avx2 ...                        name of the table
 *   VEC_HEADER  "cpu/ukernel/body/vec_avx2.h"                    the vector operations, below
 *   REAL_BITS   32 | 64                         arithmetic type: real = float | double
 *
 * VEC_HEADER defines: vec, VL (lanes), MR (granule: keys or columns at once), NV (vectors side by
 * side; strip = NV VL; MR NV accumulators + NV + 1 must fit the registers), AHEAD (products of a
 * sum done between the stores of the sums before; 0 where bursts of stores cost nothing), HELD, or
 * not (keys whose scores wait in registers from chunk to chunk; it divides MR), COLUMNS, or not
 * (body_values.h), EACH_STEP, or not (a pragma for loops over the products of a group), FETCHED, or
 * not (lines of each row of K to fetch a group ahead), RUN_LANES (most rows of body_run.h),
 * RUN_DISTANCE and FEW_DISTANCE (bytes that it fetches ahead for one row and for several; 0: the
 * lines of a step) and RUN_OWN (whether it takes several rows over keys of the own type), or not,
 * and
 *
 *   v_load v_store v_set1 v_add v_sub v_mul v_div v_abs
 *   v_fma(a,b,c) = a b + c and v_fms(a,b,c) = a b - c, rounded once; with UNFUSED, a macro of
 *                                      VEC_HEADER, v_fma rounds the product, too
 *   v_max(m,s) = s > m ? s : m         v_select_lt(a,b,x,y) = a < b ? x : y    (false on NaN, both)
 *   v_zero_lt(a,b,y) = a < b ? 0 : y   (y on NaN)
 *   v_ldexp(a,t,n) = a 2^n             n integral, t = n + EXP2_MAGIC, a 2^n normal; NaN for a NaN;
 *                                      else anything
 *   v_zip_low(a,b) v_zip_high(a,b)     halves of a0 b0 a1 b1 ...; in each half or quarter of the
 *                                      vectors by itself where there are
 *   v_low_halves v_high_halves         (a,b) = the low or high half of a, then that of b
 *   v_even_quarters v_odd_quarters     (a,b) = quarters 0 and 2, or 1 and 3, of a, then those of b
 *   v_store_quads(to,step,a) v_load_quads(from,step)   each 4 lanes of a to rows of 4 of `to`,
 *                                      `step` rows apart, and back; or neither
 *   v_repeat_quad v_add_quads v_join_f32 v_join_f16 v_join_bf16, or none: see vec_avx512.h
 *   v_load4(p) v_store4(p,a)           4 elements and zeros; the first 4 lanes; where VL > 4
 *   v_load_f16 v_load_bf16 v_store_f16 with conversion, f32 only
 *   v_load_i8 v_load_i4 v_load_e4m3 v_load_e5m2, of codes (core/codes.h), and v_load1_f16(p), one
 *                                      element as a float, or none of them; f32 only
 *   v_column_i8(x,j) v_column_i4 v_column_e4m3 v_column_e5m2   codes of column j of dwords, and
 *   v_any_beyond(x,last)               true if 7 lower bits of a byte are beyond; or none; f32 only
 *   v_join_quads(at,byte) v_split(x,a,dtype)   for by_quads of body_one.h, which takes columns of
 *                                      K for one row of Q if ONE_BY_QUADS(dtype), for several if
 *                                      RUN_BY_QUADS(dtype); each or none; f32 only
 *   v_load_two_i4(x,p) v_load_two_e4m3(x,p)   2 VL codes; f32 only
 *   v_in_pairs(dtype) v_load_pairs(x,p,dtype) v_to_pairs(x) v_from_pairs(x), or none: see
 *                                      vec_avx512.h
 *   v_columns_f16(x,row,byte)          columns of 2 VL f16 numbers of VL rows, or not; f32 only
 *   v_lanes_at(x,at)                   lanes at[0], at[1] .. of x, or not; f32 only
 *   v_quotient v_can_quotient v_can_quotients, v_pair_f16 v_pair_bf16, or not: see vec_avx512.h
 *   ivec, IVL (64-bit integers); i_load i_store i_set1 i_xor3; i_mul(a,b) = product of the low
 *                                      halves; i_high(a) = the high half
 *
 * Not here: loops over tiles, masks as geometry (core/mask.h), any choice.
 */
#include "cpu/ukernel/body/body_rows.h"
#include "cpu/ukernel/body/body_codes.h"

/* ---- products -------------------------------------------------------------------------------- */

/* Both products are sums of rows: sum[r] = sum over i < n of a[r apart + i step] times row i of b,
 * with r a key or a column. They work on the `width` vectors of lanes that hold rows, and on a
 * group of `rows` sums at once: MR, or twice as many for a single vector, since MR sums alone would
 * wait for each other. */

/* Use of a sum: stored, added to the old value, or added to alpha times the old value. */
typedef struct FN(sum_end) {
    bool add;
    const real *alpha;
} FN(sum_end);

ATTN_INLINE void FN(end_sum)(real *to, const vec *sum, FN(sum_end) end, const int width)
{
    ATTN_UNROLL for (int v = 0; v < width; v++) {
        if (end.alpha) {
            v_store(to + v * VL, v_fma(v_load(to + v * VL), v_load(end.alpha + v * VL), sum[v]));
        } else {
            v_store(to + v * VL, end.add ? v_add(v_load(to + v * VL), sum[v]) : sum[v]);
        }
    }
}

/* The first n products of a sum; rows of b are b_step apart. */
ATTN_INLINE void FN(begin_sum)(vec *sum, const real *a, int64_t step, const real *b, int64_t b_step,
                               const int n, const int width)
{
    ATTN_UNROLL for (int v = 0; v < width; v++) sum[v] = v_set1(0);
    ATTN_UNROLL for (int i = 0; i < n; i++) {
        vec one = v_set1(a[i * step]);
        ATTN_UNROLL for (int v = 0; v < width; v++) sum[v] =
            v_fma(one, v_load(b + i * b_step + v * VL), sum[v]);
    }
}

/* Products i .. n-1 of a group of sums. */
ATTN_INLINE void FN(group)(vec (*sum)[NV], const real *a, int64_t apart, int64_t step,
                           const real *b, int64_t i, int64_t n, const int rows, const int width)
{
    EACH_STEP for (b += i * STRIP; i < n; i++, b += STRIP) {
        vec x[NV];
        ATTN_UNROLL for (int v = 0; v < width; v++) x[v] = v_load(b + v * VL);
        ATTN_UNROLL for (int r = 0; r < rows; r++) {
            vec one = v_set1(a[i * step + r * apart]);
            ATTN_UNROLL for (int v = 0; v < width; v++) sum[r][v] = v_fma(one, x[v], sum[r][v]);
        }
    }
}

/* `count` sums, a multiple of `rows`. Each group's stores alternate with the first products of the
 * next, `ahead` of each sum: a burst of stores may keep the multipliers waiting. Factors that
 * lie `far`, each sum's in a row of its own, are fetched a group ahead. */
ATTN_INLINE void FN(groups)(real *to, const real *a, int64_t apart, int64_t step, const real *b,
                            int64_t n, int64_t count, FN(sum_end) end, const bool far,
                            const int ahead, const int rows, const int width)
{
    vec sum[2 * MR][NV];
    ATTN_UNROLL for (int r = 0; r < rows; r++)
        FN(begin_sum)(sum[r], a + r * apart, step, b, STRIP, ahead, width);
    for (; count > 0; count -= rows, to += rows * STRIP) {
        (void)far;
#ifdef FETCHED
        ATTN_UNROLL for (int r = 0; r < rows && far; r++) {
            ATTN_UNROLL for (int i = 0; i < FETCHED; i++)
                ATTN_PREFETCH_NEAR(a + (rows + r) * apart + i * (64 / (int)sizeof *a));
        }
#endif
        FN(group)(sum, a, apart, step, b, ahead, n, rows, width);
        a += rows * apart;
        ATTN_UNROLL for (int r = 0; r < rows; r++) {
            FN(end_sum)(to + r * STRIP, sum[r], end, width);
            if (ahead == 0 || count > rows) {
                FN(begin_sum)(sum[r], a + r * apart, step, b, STRIP, ahead, width);
            }
        }
    }
}

ATTN_INLINE void FN(sums)(real *to, const real *a, int64_t apart, int64_t step, const real *b,
                          int64_t n, int64_t count, FN(sum_end) end, const bool far,
                          const int rows, const int width)
{
    const int ahead = width == NV ? AHEAD : 0;
    if (n >= ahead) {
        FN(groups)(to, a, apart, step, b, n, count, end, far, ahead, rows, width);
    } else {
        FN(groups)(to, a, apart, step, b, n, count, end, false, 0, 1, width);
    }
}

#ifdef HELD
/* Adds the chains of `chunks` chunks of n columns each to the sums of HELD keys, chunk after chunk:
 * without sums that are there already, if `first`. */
ATTN_INLINE void FN(add_chunks)(vec (*total)[NV], const real *k, const real *qt, int64_t d,
                                int64_t n, const bool first, const int chunks, const int width)
{
    vec sum[2 * HELD][NV];
    ATTN_UNROLL for (int r = 0; r < chunks * HELD; r++)
        FN(begin_sum)(sum[r], k, 1, qt, STRIP, 0, width);
    for (int64_t i = 0; i < n; i++, k++, qt += STRIP) {
        ATTN_UNROLL for (int c = 0; c < chunks; c++)
            FN(group)(sum + c * HELD, k + c * ATTN_DOT_CHUNK, d, 1,
                      qt + c * ATTN_DOT_CHUNK * STRIP, 0, 1, HELD, width);
    }
    ATTN_UNROLL for (int r = 0; r < chunks * HELD; r++) {
        ATTN_UNROLL for (int v = 0; v < width; v++) total[r % HELD][v] =
            first && r < HELD ? sum[r][v] : v_add(total[r % HELD][v], sum[r][v]);
    }
}

/* n keys, a multiple of HELD: sums over the chunks of a span stay in registers. A span's part of QT
 * stays in the first-level cache. The chains of two chunks run side by side: those of one would
 * wait for each other. */
ATTN_INLINE void FN(qk_held)(real *s, const real *k, const real *qt, int64_t d, int64_t n,
                             const int width)
{
    enum { CHUNK = ATTN_DOT_CHUNK, SPAN = 4 * CHUNK };
    for (int64_t first = 0; first < d; first += SPAN) {
        const int64_t end = d - first < SPAN ? d : first + SPAN;
        for (int64_t key = 0; key < n; key += HELD) {
            real *to = s + key * STRIP;
            vec total[HELD][NV];
            ATTN_UNROLL for (int r = 0; r < HELD; r++) {
                ATTN_UNROLL for (int v = 0; v < width; v++) total[r][v] =
                    first > 0 ? v_load(to + r * STRIP + v * VL) : v_set1(0);
            }
            int64_t c = first;
            for (; c + 2 * CHUNK <= end; c += 2 * CHUNK)
                FN(add_chunks)(total, k + key * d + c, qt + c * STRIP, d, CHUNK, c == 0, 2, width);
            for (; c < end; c += CHUNK)
                FN(add_chunks)(total, k + key * d + c, qt + c * STRIP, d,
                               end - c < CHUNK ? end - c : CHUNK, c == 0, 1, width);
            ATTN_UNROLL for (int r = 0; r < HELD; r++)
                FN(end_sum)(to + r * STRIP, total[r], (FN(sum_end)){false, NULL}, width);
        }
    }
}
#endif

/* Rows of K of more columns are far apart: those of the next group do not come by themselves. */
enum { FN(NEAR_COLUMNS) = 3 * ATTN_DOT_CHUNK };

/* n > 0 keys, a multiple of `rows`. Chunk by chunk, not key by key: the sums that are added to were
 * stored long before. */
ATTN_INLINE void FN(qk_keys)(real *s, const real *k, const real *qt, int64_t d, int64_t n,
                             const int rows, const int width)
{
    int64_t c = 0;
#ifdef HELD
    if (rows == MR && width == NV && d > 0) {
        FN(qk_held)(s, k, qt, d, n, width);
        return;
    }
#endif
    do {
        int64_t left = d - c < ATTN_DOT_CHUNK ? d - c : ATTN_DOT_CHUNK;
        FN(sums)(s, k + c, d, 1, qt + c * STRIP, left, n, (FN(sum_end)){c > 0, NULL},
                 d > FN(NEAR_COLUMNS), rows, width);
        c += ATTN_DOT_CHUNK;
    } while (c < d);
}

/* Tail: recompute the last MR keys (overlapping ones twice), so that no key beyond the panel is
 * read. */
ATTN_INLINE void FN(qk_width)(real *s, const real *k, const real *qt, int64_t d, int64_t n,
                              const int width)
{
    const int64_t twice = width == 1 ? n - n % (2 * MR) : 0, whole = n - n % MR, last = n - MR;
    if (twice > 0) {
        FN(qk_keys)(s, k, qt, d, twice, 2 * MR, width);
    }
    if (whole > twice) {
        FN(qk_keys)(s + twice * STRIP, k + twice * d, qt, d, whole - twice, MR, width);
    }
    if (n > whole && last >= 0) {
        FN(qk_keys)(s + last * STRIP, k + last * d, qt, d, MR, MR, width);
    } else if (n > whole) {
        FN(qk_keys)(s, k, qt, d, n, 1, width);
    }
}

#include "cpu/ukernel/body/body_few.h"
#include "cpu/ukernel/body/body_few_codes.h"
#include "cpu/ukernel/body/body_own.h"

static void FN(qk_fetching)(real *s, const real *k, const real *qt, int64_t d, int64_t n,
                            int lanes, attn_soon *soon)
{
    const int64_t done = lanes <= FN(FEW) ? FN(few_qk)(s, k, qt, d, n, lanes, soon) : 0;
    if (lanes <= VL) {
        FN(qk_width)(s + done * STRIP, k + done * d, qt, d, n - done, 1);
    } else if (NV > 2 && lanes <= 2 * VL) {
        FN(qk_width)(s, k, qt, d, n, 2);
    } else {
        FN(qk_width)(s, k, qt, d, n, NV);
    }
}

static void FN(qk)(void *s, const void *k, int64_t at, const void *qt, int64_t d, int64_t n,
                   int lanes)
{
    FN(qk_fetching)(s, (const real *)k + at * d, qt, d, n, lanes, NULL);
}

/* Columns from `first` on. */
ATTN_INLINE void FN(pv_width)(real *ot, const real *x, const real *p, int64_t dv_pad, int64_t first,
                              int64_t n, const real *alpha, const int width)
{
    const int64_t count = dv_pad - first, twice = width == 1 ? count - count % (2 * MR) : 0;
    const FN(sum_end) end = {false, alpha};
    ot += first * STRIP, x += first;
    if (twice > 0) {
        FN(sums)(ot, x, 1, dv_pad, p, n, twice, end, false, 2 * MR, width);
    }
    if (count > twice) {
        FN(sums)(ot + twice * STRIP, x + twice, 1, dv_pad, p, n, count - twice, end, false, MR,
                 width);
    }
}

static void FN(pv)(void *ot, const void *v, int64_t at, const void *p, int64_t dv_pad, int64_t n,
                   const void *alpha, int lanes)
{
    const real *x = (const real *)v + at * dv_pad;
    const attn_values values = {.v = x, .dv_pad = dv_pad};
    const bool few = lanes <= FN(FEW);
    const int64_t done = few ? FN(few_values)(ot, &values, p, n, alpha, lanes) : 0;
    if (lanes <= VL) {
        FN(pv_width)(ot, x, p, dv_pad, done, n, alpha, 1);
    } else if (NV > 2 && lanes <= 2 * VL) {
        FN(pv_width)(ot, x, p, dv_pad, 0, n, alpha, 2);
    } else {
        FN(pv_width)(ot, x, p, dv_pad, 0, n, alpha, NV);
    }
}

static void FN(pv_few)(void *ot, const attn_values *v, const void *p, int64_t n, const void *alpha,
                       int lanes)
{
    const int64_t done = FN(few_values)(ot, v, p, n, alpha, lanes);
    if (done < v->dv_pad) { /* of a panel */
        const real *x = (const real *)v->v + v->at * v->dv_pad;
        FN(pv_width)(ot, x, p, v->dv_pad, done, n, alpha, 1);
    }
}

#include "cpu/ukernel/body/body_values.h"
#include "cpu/ukernel/body/body_softmax.h"
#include "cpu/ukernel/body/body_run.h"

/* A block is one tile. */
static void FN(qk_softmax)(void *p, int64_t done, void *s, const attn_keys *keys, double c,
                           const attn_running *state, int lanes)
{
    const real *k = (const real *)keys->k + keys->at * keys->d;
    if (keys->rows) {
        FN(qk_rows)(s, keys, lanes, state->ahead.soon);
    } else {
        FN(qk_fetching)(s, k, keys->qt, keys->d, keys->n, lanes, state->ahead.soon);
    }
    FN(softmax)(p, done, s, keys->n, c, state, lanes);
}

/* ---- panels ---------------------------------------------------------------------------------- */

/* No state beyond the ordinary registers: begin and end. */
static void FN(no_state)(void)
{
}

static uint64_t FN(k_bytes)(int64_t d)
{
    return (uint64_t)ATTN_KEY_BLOCK * (uint64_t)d * sizeof(real);
}

static uint64_t FN(v_bytes)(int64_t dv_pad)
{
    return (uint64_t)ATTN_KEY_BLOCK * (uint64_t)dv_pad * sizeof(real);
}

static uint64_t FN(q_bytes)(int64_t d)
{
    return (uint64_t)d * STRIP * sizeof(real);
}

static uint64_t FN(p_bytes)(void)
{
    return 0;
}

#include "cpu/ukernel/body/body_pack.h"
#include "cpu/ukernel/body/body_grad_rows.h"

const attn_ukernel ATTN_CAT(ATTN_CAT(attn_ukernel_, ISA), ATTN_CAT(_, TYPE)) = {
    .name = ATTN_STRING(ISA) "_" ATTN_STRING(TYPE),
    .grad = &FN(grad),
    .bits = TABLE_BITS,
    .losses = {PRODUCT_LOSS, PRODUCT_LOSS},
    .vector_bits = 8 * VL * (int)sizeof(real),
    .strip = STRIP,
    .granule = MR,
    .takes_rows = FN(takes_rows),
    .few_lanes = FN(FEW),
    .pv_few = FN(pv_few),
    .takes_run = FN(takes_run),
    .run_rows = FN(run_rows),
    .own_qk = FN(own_qk),
    .side_qk = SIDE_QK,
    .own_fits = FN(own_fits),
    .own_pv = FN(own_pv),
    VALUE_ROWS,
    .v_bytes = FN(v_bytes),
    .q_bytes = FN(q_bytes),
    .p_bytes = FN(p_bytes),
    .qk_codes = QK_CODES,
    .qk_rows = FN(qk_rows),
    .widen = FN(widen),
    ATTN_TABLE_KERNELS,
};

#include "cpu/ukernel/body/body_end.h"
