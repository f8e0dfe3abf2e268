/*
 * amx_body.h: the microkernels on AMX tiles, for elements that are the sum of PARTS bf16 parts. Included at the end of
 * amx_bf16.c, amx_f16.c and amx_f32.c, which define before it
 *
 *   NAME, PARTS        bf16, 1; f16, 2; f32, 3
 *   element            the type of Q, K, V in memory
 *   split_columns()    32 columns of a row -> PARTS vectors of bf16: dword i of columns LOW_COLUMN + COLUMN_STEP i and
 *                      HIGH_COLUMN + COLUMN_STEP i; store_columns() takes two such rows to [column][2]
 *   QK_PASSES(), PV_STEPS()   the products of parts that are taken, smallest first
 *   split()            16 floats -> PARTS vectors of bf16, in upper halves
 *   probability()      exp2
 *
 * and get one table. Scores, masks and results are those of AVX-512. Panels, once per part:
 *
 *     K   [key][d_pad]              bf16, d_pad = d rounded up to 32, padding zero
 *     QT  [d_pad / 2][32][2]        dword (i, query) holds the columns of dword i of a row of K
 *     V   [dv_pad][KEY_BLOCK + 32]  transposed; keys from the last packed one to a multiple of 32 are zero
 *     P   [key / 2][32][2]          dword (key/2, query) holds keys key and key + 1
 */

#include "amx_pack.h"

/* ---- products -------------------------------------------------------------------------------------------------- */

#define PRODUCT(c0, c1, ta, first)        \
    do {                                  \
        if (passes) {                     \
            QK_PASSES(c0, c1, ta, first); \
        } else {                          \
            PV_STEPS(c0, c1, ta, first);  \
        }                                 \
    } while (0)

/* S = K QT. The stores of 16 rows wait for their last product: they come after the products of the next 16 rows. */
ATTN_INLINE void store_product(float *s, const void *k, int64_t at, const void *qt, int64_t d, int64_t n,
                               const bool passes, const bool wide)
{
    const int64_t d_pad = pad32(d);
    const factors where =
                      {
                          .b = qt,
                          .a_stride = d_pad * 2,
                          .a_part = PANEL_KEYS * d_pad,
                          .a_step = 32,
                          .b_stride = STRIDE,
                          .b_part = d_pad * STRIP,
                          .b_step = TILE * 2 * STRIP,
                          .steps = d_pad / 32,
                      },
                  *f = &where;
    const uint16_t *a = (const uint16_t *)k + at * d_pad;
    for (int64_t key = 0; key < n; key += 2 * TILE, a += 2 * TILE * d_pad, s += 2 * TILE * STRIP) {
        ROW_ZERO(0, 1);
        PRODUCT(0, 1, 4, a);
        if (key > 0) {
            ROW_STORE(2, 3, s - TILE * STRIP);
        }
        if (key + TILE >= n) {
            ROW_STORE(0, 1, s);
            return;
        }
        ROW_ZERO(2, 3);
        PRODUCT(2, 3, 5, a + TILE * d_pad);
        ROW_STORE(0, 1, s);
    }
    ROW_STORE(2, 3, s - TILE * STRIP);
}

/* Here and below, strips of at most 16 queries are half as wide. */
static void qk(void *s, const void *k, int64_t at, const void *qt, int64_t d, int64_t n, int lanes)
{
    if (lanes > TILE) {
        store_product(s, k, at, qt, d, n, true, true);
    } else {
        store_product(s, k, at, qt, d, n, true, false);
    }
}

/* to[16 rows] = to alpha + the fresh sums in `sum`. */
ATTN_INLINE void add_rows(float *to, int64_t stride, const float *sum, vec a0, vec a1, const bool wide)
{
    for (int i = 0; i < TILE * STRIP; i += STRIP, to += stride) {
        v_store(to, v_fma(v_load(to), a0, v_load(sum + i)));
        if (wide) {
            v_store(to + VL, v_fma(v_load(to + VL), a1, v_load(sum + i + VL)));
        }
    }
}

/* to = to alpha + A B for `rows` rows, a multiple of 32, of 32 columns. As in qk, and the sums of 16 rows are added
 * while the products of later rows run. */
ATTN_INLINE void add_product(float *to, int64_t stride, int64_t rows, vec a0, vec a1, const factors *f, const bool wide)
{
    float sum[2][TILE * STRIP] __attribute__((aligned(64)));
    const int64_t next = TILE * stride;
    const uint16_t *a = f->a;
    for (int64_t row = 0; row < rows; row += 2 * TILE, a += 2 * f->a_rows, to += 2 * next) {
        ROW_ZERO(0, 1);
        PV_STEPS(0, 1, 4, a);
        if (row > 0) {
            add_rows(to - 2 * next, stride, sum[0], a0, a1, wide);
            ROW_STORE(2, 3, sum[1]);
        }
        ROW_ZERO(2, 3);
        PV_STEPS(2, 3, 5, a + f->a_rows);
        if (row > 0) {
            add_rows(to - next, stride, sum[1], a0, a1, wide);
        }
        ROW_STORE(0, 1, sum[0]);
    }
    if (rows > 0) {
        add_rows(to - 2 * next, stride, sum[0], a0, a1, wide);
        ROW_STORE(2, 3, sum[1]);
        add_rows(to - next, stride, sum[1], a0, a1, wide);
    }
}

static void pv(void *ot, const void *v, int64_t at, const void *p, int64_t dv_pad, int64_t n, const void *alpha,
               int lanes)
{
    const factors f = {
        .a = (const uint16_t *)v + at,
        .b = p,
        .a_stride = PANEL_KEYS * 2,
        .a_part = dv_pad * PANEL_KEYS,
        .a_step = 32,
        .a_rows = TILE * PANEL_KEYS,
        .b_stride = STRIDE,
        .b_part = P_PART,
        .b_step = TILE * 2 * STRIP,
        .steps = (n + KEY_STEP - 1) / KEY_STEP,
    };
    vec a0 = v_set1(0), a1 = a0;
    if (alpha) {
        a0 = v_load(alpha), a1 = v_load((const float *)alpha + VL);
    } else {
        memset(ot, 0, (size_t)(dv_pad * STRIP) * sizeof(float));
    }
    if (lanes > TILE) {
        add_product(ot, STRIP, dv_pad, a0, a1, &f, true);
    } else {
        add_product(ot, STRIP, dv_pad, a0, a1, &f, false);
    }
}

/* The sum of an element's parts. */
static float whole(const uint16_t *x, int64_t part)
{
    float sum = 0;
    for (int i = 0; i < PARTS; i++) {
        sum += attn_bf16_to_f32(x[i * part]);
    }
    return sum;
}

static void pv_careful(void *ot, const void *v_, int64_t at, const void *p, int64_t dv_pad, int64_t n,
                       const void *alpha, const unsigned char *visible, int lanes)
{
    for (int64_t c = 0; c < dv_pad; c++) {
        const uint16_t *v = (const uint16_t *)v_ + c * PANEL_KEYS + at;
        for (int lane = 0; lane < lanes; lane++) {
            float sum = 0, *o = (float *)ot + c * STRIP + lane;
            for (int64_t key = 0; key < n; key++) {
                if (visible[key * STRIP + lane]) {
                    const uint16_t *w = (const uint16_t *)p + (key / 2 * STRIP + lane) * 2 + key % 2;
                    sum = fmaf(whole(v + key, dv_pad * PANEL_KEYS), whole(w, P_PART), sum);
                }
            }
            *o = alpha ? fmaf(*o, ((const float *)alpha)[lane], sum) : sum;
        }
    }
}

/* ---- softmax --------------------------------------------------------------------------------------------------- */

/*
 * The reference m of a lane is not its maximum but the maximum at the time of its last raise, and it is raised only
 * when a score exceeds it by more than SLACK powers of two: so the first pass over a tile is nearly always the only
 * one. What a lane does depends on its own scores alone. Probabilities of up to 2^SLACK cost no accuracy: their parts
 * are floating-point numbers. (Flash attention 4 rescales as lazily, for another reason.)
 */
enum { SLACK = 8 };

/* Dwords of 16 lanes, each a in the lower half and b in the upper one; a and b as split() gives them. */
ATTN_INLINE void store_parts(uint16_t *p, const __m512i *a, const __m512i *b)
{
    for (int i = 0; i < PARTS; i++) {
        _mm512_storeu_si512(p + i * P_PART, _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(a[i], 16), b[i]));
    }
}

ATTN_INLINE void store_pair(uint16_t *p, vec a, vec b)
{
    __m512i a_part[PARTS], b_part[PARTS];
    split(a_part, a);
    split(b_part, b);
    store_parts(p, a_part, b_part);
}

/* 2^((x - m) c); m = -inf, nothing seen yet, stands for any finite reference. */
ATTN_INLINE vec relative(vec x, vec m, vec c, vec least)
{
    return probability(v_sub(x, v_zero_lt(m, v_set1(-REAL_MAX), m)), c, least);
}

/* P of two keys, 16 lanes, times a and b. */
ATTN_INLINE void scale_pair(uint16_t *p, vec a, vec b)
{
    vec first = v_set1(0), second = v_set1(0);
    for (int part = PARTS - 1; part >= 0; part--) { /* exact: these are the parts of a float */
        __m512i x = _mm512_loadu_si512(p + part * P_PART);
        first = v_add(first, _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)));
        second = v_add(second, _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000))));
    }
    store_pair(p, v_mul(first, a), v_mul(second, b));
}

/* Lanes whose scores exceed m by more than the slack, or that have none yet, get the maximum for m. */
static void raise_reference(uint16_t *p, int64_t done, const float *s, int64_t n, vec c, const attn_running *state,
                            int groups)
{
    const vec slack = v_div(v_set1(SLACK), c), least = v_div(v_set1(EXP2_MIN), c);
    for (int g = 0; g < groups * VL; g += VL) {
        float *m = (float *)state->m + g, *l = (float *)state->l + g, *alpha = (float *)state->alpha + g;
        vec old = v_load(m), top = old;
        for (int64_t key = 0; key < n; key++) {
            top = v_max(top, v_load(s + key * STRIP + g));
        }
        vec new = _mm512_mask_mov_ps(old, _mm512_cmp_ps_mask(v_sub(top, old), slack, _CMP_GT_OQ), top);
        vec a = relative(old, new, c, least);
        v_store(m, new);
        v_store(l, v_mul(v_load(l), a));
        v_store(alpha, v_mul(v_load(alpha), a));
        for (int64_t key = 0; key < done; key += 2) {
            scale_pair(p + key * STRIP + 2 * g, a, a);
        }
    }
}

/* Some lane has no reference yet. */
ATTN_INLINE bool unseen(const float *m, const int groups)
{
    __mmask16 none = 0;
    for (int g = 0; g < groups; g++) {
        none |= _mm512_cmp_ps_mask(v_load(m + g * VL), v_set1(-INFINITY), _CMP_EQ_OQ);
    }
    return none != 0;
}

/* Some lane exceeds its reference by more than the slack. */
ATTN_INLINE bool exceeds(const vec *top, const float *m, vec slack, const int groups)
{
    __mmask16 some = 0;
    for (int g = 0; g < groups; g++) {
        some |= _mm512_cmp_ps_mask(v_sub(top[g], v_load(m + g * VL)), slack, _CMP_GT_OQ);
    }
    return some != 0;
}

/* P of n keys (n even) and their sums; top = max(top, S). */
ATTN_INLINE void exponentials(uint16_t *p, const float *s, int64_t n, vec c, const float *m, vec *top, vec *sum,
                              const int groups)
{
    const vec least = v_div(v_set1(EXP2_MIN), c);
    vec reference[2], most[2], total[2];
    for (int g = 0; g < groups; g++) {
        const vec x = v_load(m + g * VL);
        reference[g] = v_zero_lt(x, v_set1(-REAL_MAX), x), most[g] = top[g], total[g] = v_set1(0);
    }
    for (int64_t key = 0; key < n; key += 2, s += 2 * STRIP, p += 2 * STRIP) {
        vec a[2], b[2];
        for (int g = 0; g < groups; g++) {
            a[g] = v_load(s + g * VL), b[g] = v_load(s + STRIP + g * VL);
            most[g] = v_max(v_max(most[g], a[g]), b[g]);
        }
        for (int g = 0; g < groups; g++) {
            a[g] = probability(v_sub(a[g], reference[g]), c, least);
            b[g] = probability(v_sub(b[g], reference[g]), c, least);
            total[g] = v_add(v_add(total[g], a[g]), b[g]);
            store_pair(p + 2 * g * VL, a[g], b[g]);
        }
    }
    for (int g = 0; g < groups; g++) {
        top[g] = most[g], sum[g] = total[g];
    }
}

ATTN_INLINE void softmax_groups(uint16_t *p, int64_t done, float *s, int64_t n, vec c, const attn_running *state,
                                const int groups)
{
    const vec slack = v_div(v_set1(SLACK), c);
    const int64_t even = n + n % 2;
    float *m = state->m, *l = state->l, *alpha = state->alpha, *most = state->top;
    uint16_t *to = p + done * STRIP;
    vec top[2], sum[2];
    for (int g = 0; g < groups; g++) {
        top[g] = v_load(most + g * VL);
        if (n % 2) {
            v_store(s + n * STRIP + g * VL, v_set1(-INFINITY));
        }
        if (done == 0) {
            v_store(alpha + g * VL, v_set1(1));
        }
    }
    if (unseen(m, groups)) {
        raise_reference(p, done, s, n, c, state, groups);
    }
    exponentials(to, s, even, c, m, top, sum, groups);
    if (exceeds(top, m, slack, groups)) {
        raise_reference(p, done, s, n, c, state, groups);
        exponentials(to, s, even, c, m, top, sum, groups);
    }
    for (int g = 0; g < groups; g++) {
        for (int64_t key = even; key < pad32(n); key += 2) {
            store_pair(to + key * STRIP + 2 * g * VL, v_set1(0), v_set1(0));
        }
        v_store(most + g * VL, top[g]);
        v_store(l + g * VL, v_add(v_load(l + g * VL), sum[g]));
    }
}

static void softmax(void *p, int64_t done, void *s, int64_t n, double c, const attn_running *state, int lanes)
{
    if (lanes > TILE) {
        softmax_groups(p, done, s, n, v_set1((float)c), state, 2);
    } else {
        softmax_groups(p, done, s, n, v_set1((float)c), state, 1);
    }
}

#include "amx_grad.h"

/* ---- the table ------------------------------------------------------------------------------------------------- */

static void begin(void)
{
    tiles_begin();
}

static void end(void)
{
    tiles_end();
}

static uint64_t k_bytes(int64_t d)
{
    return PARTS * (uint64_t)PANEL_KEYS * (uint64_t)pad32(d) * 2;
}

static uint64_t v_bytes(int64_t dv_pad)
{
    return PARTS * (uint64_t)PANEL_KEYS * (uint64_t)dv_pad * 2;
}

static uint64_t q_bytes(int64_t d)
{
    return PARTS * (uint64_t)pad32(d) * STRIP * 2;
}

static uint64_t p_bytes(void)
{
    return PARTS * (uint64_t)P_PART * 2;
}

const attn_ukernel ATTN_CAT(attn_ukernel_amx_, NAME) = {
    .name = "amx_" ATTN_STRING(NAME),
    .grad = &grad,
    .strip = STRIP,
    .granule = 2 * TILE,
    .key_block = KEY_BLOCK,
    .key_tile = KEY_TILE,
    .key_step = KEY_STEP,
    .real_size = 4,
    .lags = true,
    .begin = begin,
    .end = end,
    .k_bytes = k_bytes,
    .v_bytes = v_bytes,
    .q_bytes = q_bytes,
    .p_bytes = p_bytes,
    .pack_k = pack_k,
    .pack_v = pack_v,
    .pack_q = pack_q,
    .qk = qk,
    .bias = bias_f32,
    .score = score_f32,
    .mask = mask_f32,
    .softmax = softmax,
    .pv = pv,
    .pv_careful = pv_careful,
    .finite = finite_f32,
    .store = store_f32,
};
