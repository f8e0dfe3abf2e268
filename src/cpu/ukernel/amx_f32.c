/*
 * amx_f32.c: the table for f32 on AMX tiles. Every f32 is the exact sum of three bf16 parts of 8 bits, high, middle, low:
 * x = x0 + x1 + x2. Of the nine products of parts the six of weight 2^-16 and more are taken, x0 y0, x0 y1, x1 y0, x1 y1,
 * x0 y2, x2 y0, each a tile product with f32 sums; what is left out is below 2^-24 of |x||y|. Six tile products cost
 * less than half of the multiply-adds of AVX-512.
 *
 * Panels are those of amx_bf16.c, three times, one per part:
 *
 *     K   [part][key][d_pad]                     QT  [part][d_pad / 2][32][2]
 *     V   [part][dv_pad][KEY_BLOCK + 32]         P   [part][key / 2][32][2]
 *
 * Parts below 2^-126 are lost: inputs smaller than about 2^-110 keep fewer bits.
 */
#include "amx_tiles.h"

enum { PARTS = 3, P_PART = KEY_BLOCK * STRIP };

/* ---- packing ------------------------------------------------------------------------------------------------------ */

/* Columns c .. c+15 of a row of n; zero beyond n or for a NULL row. */
static vec load_columns(const void *row, int64_t stride, int64_t c, int64_t n)
{
    const float *x = row;
    if (row && stride == 1) {
        int64_t left = n - c;
        return _mm512_maskz_loadu_ps((__mmask16)(left >= 16 ? 0xffff : left > 0 ? (1 << left) - 1 : 0), x + c);
    }
    float column[16] = {0};
    for (int64_t i = 0; row && i < 16 && c + i < n; i++) {
        column[i] = x[(c + i) * stride];
    }
    return v_load(column);
}

/* x without its lower 16 bits, and the rest in x. */
ATTN_INLINE vec take_part(vec *x)
{
    vec high = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(*x), _mm512_set1_epi32((int)0xffff0000)));
    *x = v_sub(*x, high);
    return high;
}

/* The upper halves of 32 floats, a then b. */
ATTN_INLINE __m512i upper_halves(vec a, vec b)
{
    __m512i low = _mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(a), 16)));
    __m256i high = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(b), 16));
    return _mm512_inserti64x4(low, high, 1);
}

/* Columns c .. c+31 of a row as three vectors of bf16. */
static void split_columns(__m512i *part, const void *row, int64_t stride, int64_t c, int64_t n, float factor)
{
    vec a = v_mul(load_columns(row, stride, c, n), v_set1(factor));
    vec b = v_mul(load_columns(row, stride, c + 16, n), v_set1(factor));
    for (int i = 0; i < PARTS; i++) {
        vec a_part = take_part(&a), b_part = take_part(&b);
        part[i] = upper_halves(a_part, b_part);
    }
}

static void pack_k(void *k, int64_t at, const attn_rows *src, int64_t n, int64_t d)
{
    int64_t d_pad = pad32(d);
    for (int64_t key = 0; key < n; key++) {
        const float *row = (const float *)src->data + key * src->row_stride;
        uint16_t *to = (uint16_t *)k + (at + key) * d_pad;
        for (int64_t c = 0; c < d_pad; c += 32) {
            __m512i part[PARTS];
            split_columns(part, row, src->col_stride, c, d, 1);
            for (int i = 0; i < PARTS; i++) {
                _mm512_storeu_si512(to + i * PANEL_KEYS * d_pad + c, part[i]);
            }
        }
    }
}

/* 32 keys x 32 columns of one part: pairs of keys interleaved to dwords, even and odd columns apart, then transposed. */
static void transpose_values(uint16_t *to, __m512i (*row)[PARTS], int part, int64_t columns)
{
    __m512i even[16], odd[16];
    for (int pair = 0; pair < 16; pair++) {
        __m512i a = row[2 * pair][part], b = row[2 * pair + 1][part];
        even[pair] = _mm512_mask_blend_epi16(0xaaaaaaaau, a, _mm512_slli_epi32(b, 16));
        odd[pair] = _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(a, 16), b);
    }
    uint32_t block[32][16]; /* [column][pair] */
    transpose16(block[0], 32, even);
    transpose16(block[1], 32, odd);
    for (int i = 0; i < 32 && i < columns; i++) {
        memcpy(to + i * PANEL_KEYS, block[i], sizeof block[i]);
    }
}

static void pack_v(void *v, int64_t at, const attn_rows *src, int64_t n, int64_t dv, int64_t dv_pad)
{
    for (int64_t key = 0; key < n; key += KEY_STEP) {
        for (int64_t c = 0; c < dv_pad; c += 32) {
            __m512i row[KEY_STEP][PARTS];
            for (int64_t i = 0; i < KEY_STEP; i++) {
                const float *x = (const float *)src->data + (key + i) * src->row_stride;
                split_columns(row[i], key + i < n ? x : NULL, src->col_stride, c, dv, 1);
            }
            for (int part = 0; part < PARTS; part++) {
                uint16_t *to = (uint16_t *)v + (part * dv_pad + c) * PANEL_KEYS + at + key;
                transpose_values(to, row, part, dv_pad - c);
            }
        }
    }
}

static void pack_q(void *qt, const void *const *row, int64_t stride, int32_t dtype, int64_t d, double factor)
{
    (void)dtype;
    for (int64_t c = 0; c < d; c += 32) {
        for (int lane = 0; lane < STRIP; lane += TILE) {
            __m512i split[TILE][PARTS], x[TILE];
            for (int i = 0; i < TILE; i++) {
                split_columns(split[i], row[lane + i], stride, c, d, (float)factor);
            }
            for (int part = 0; part < PARTS; part++) {
                for (int i = 0; i < TILE; i++) {
                    x[i] = split[i][part];
                }
                transpose16((uint32_t *)qt + (part * pad32(d) + c) / 2 * STRIP + lane, STRIP, x);
            }
        }
    }
}

/* ---- products ------------------------------------------------------------------------------------------------------ */

#define LOAD_A(a, stride)                        \
    do {                                         \
        TILE_LOAD(4, a, stride);                 \
        TILE_LOAD(5, (a) + TILE * (stride) / 2, stride); \
    } while (0)
#define LOAD_B(b)                         \
    do {                                  \
        TILE_LOAD(6, b, S_STRIDE);        \
        TILE_LOAD(7, (b) + 32, S_STRIDE); \
    } while (0)
#define PRODUCTS()      \
    do {                \
        TILE_DP(0, 4, 6); \
        TILE_DP(1, 4, 7); \
        TILE_DP(2, 5, 6); \
        TILE_DP(3, 5, 7); \
    } while (0)

/* Tiles 0..3 (32 x 32) += the six products over `steps` steps of 32: A advances by 64 bytes, B by 16 rows. The order lets
 * each step after the first load only one of the operands anew. */
ATTN_INLINE void six_products(const uint16_t *a, int64_t a_part, int64_t a_stride, const uint16_t *b, int64_t b_part,
                              int64_t steps)
{
    for (; steps > 0; steps--, a += 32, b += TILE * STRIP * 2) {
        LOAD_A(a + 2 * a_part, a_stride);
        LOAD_B(b);
        PRODUCTS(); /* 2 0 */
        LOAD_A(a + a_part, a_stride);
        PRODUCTS(); /* 1 0 */
        LOAD_B(b + b_part);
        PRODUCTS(); /* 1 1 */
        LOAD_A(a, a_stride);
        PRODUCTS(); /* 0 1 */
        LOAD_B(b + 2 * b_part);
        PRODUCTS(); /* 0 2 */
        LOAD_B(b);
        PRODUCTS(); /* 0 0 */
    }
}

ATTN_INLINE void zero_tiles(void)
{
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
}

/* Tiles 0..3 to 32 rows of 32 floats. */
ATTN_INLINE void store_tiles(float *to)
{
    TILE_STORE(0, to, S_STRIDE);
    TILE_STORE(1, to + TILE, S_STRIDE);
    TILE_STORE(2, to + TILE * STRIP, S_STRIDE);
    TILE_STORE(3, to + TILE * STRIP + TILE, S_STRIDE);
}

static void qk(void *s, const void *k, int64_t at, const void *qt, int64_t d, int64_t n)
{
    int64_t d_pad = pad32(d);
    for (int64_t key = 0; key < n; key += 2 * TILE) {
        const uint16_t *a = (const uint16_t *)k + (at + key) * d_pad;
        zero_tiles();
        six_products(a, PANEL_KEYS * d_pad, d_pad * 2, qt, d_pad * STRIP, d_pad / 32);
        store_tiles((float *)s + key * STRIP);
    }
}

static void pv(void *ot, const void *v, int64_t at, const void *p, int64_t dv_pad, int64_t n, const void *alpha)
{
    float sum[2 * TILE * STRIP] __attribute__((aligned(64)));
    for (int64_t c = 0; c < dv_pad; c += 2 * TILE) {
        const uint16_t *a = (const uint16_t *)v + c * PANEL_KEYS + at;
        zero_tiles();
        six_products(a, dv_pad * PANEL_KEYS, PANEL_KEYS * 2, p, P_PART, (n + KEY_STEP - 1) / KEY_STEP);
        store_tiles(sum);
        add_rows((float *)ot + c * STRIP, sum, alpha);
        add_rows((float *)ot + (c + TILE) * STRIP, sum + TILE * STRIP, alpha);
    }
}

/* The sum of an element's parts. */
static float whole(const uint16_t *x, int64_t part)
{
    return attn_bf16_to_f32(x[0]) + attn_bf16_to_f32(x[part]) + attn_bf16_to_f32(x[2 * part]);
}

static void pv_careful(void *ot, const void *v_, int64_t at, const void *p, int64_t dv_pad, int64_t n,
                       const void *alpha, const unsigned char *visible)
{
    for (int64_t c = 0; c < dv_pad; c++) {
        const uint16_t *v = (const uint16_t *)v_ + c * PANEL_KEYS + at;
        for (int lane = 0; lane < STRIP; lane++) {
            float sum = 0, *o = (float *)ot + c * STRIP + lane;
            for (int64_t key = 0; key < n; key++) {
                if (visible[key * STRIP + lane]) {
                    const uint16_t *w = (const uint16_t *)p + (key / 2 * STRIP + lane) * 2 + key % 2;
                    sum = fmaf(whole(v + key, dv_pad * PANEL_KEYS), whole(w, P_PART), sum);
                }
            }
            *o = fmaf(*o, ((const float *)alpha)[lane], sum);
        }
    }
}

/* ---- softmax ------------------------------------------------------------------------------------------------------- */

/* The three parts of a pair of keys, as dwords, 16 lanes. */
ATTN_INLINE void store_pair(uint16_t *p, vec a, vec b)
{
    for (int i = 0; i < PARTS; i++) {
        __m512i a_part = _mm512_castps_si512(take_part(&a)), b_part = _mm512_castps_si512(take_part(&b));
        _mm512_storeu_si512(p + i * P_PART, _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(a_part, 16), b_part));
    }
}

static void softmax(void *p_, void *s, int64_t n, double c_, void *m_, void *l_, void *alpha_)
{
    const vec c = v_set1((float)c_), least = v_set1((float)(EXP2_MIN / c_));
    const int64_t even = n + n % 2, pad = pad32(n);
    if (n % 2) {
        for (int i = 0; i < STRIP; i++) {
            ((float *)s)[n * STRIP + i] = -INFINITY;
        }
    }
    for (int g = 0; g < STRIP; g += VL) {
        float *x = (float *)s + g, *m = (float *)m_ + g, *l = (float *)l_ + g, *alpha = (float *)alpha_ + g;
        uint16_t *p = (uint16_t *)p_ + 2 * g;
        vec old = v_load(m), top = top_rows(x, even, old), used = v_zero_lt(top, v_set1(-REAL_MAX), top);
        vec sum = v_set1(0), a = exp2_f32(v_sub(old, used), c, least);
        for (int64_t key = 0; key < even; key += 2) {
            vec first = exp2_f32(v_sub(v_load(x + key * STRIP), used), c, least);
            vec second = exp2_f32(v_sub(v_load(x + (key + 1) * STRIP), used), c, least);
            sum = v_add(v_add(sum, first), second);
            store_pair(p + key * STRIP, first, second);
        }
        for (int64_t key = even; key < pad; key += 2) {
            store_pair(p + key * STRIP, v_set1(0), v_set1(0));
        }
        v_store(m, top);
        v_store(l, v_fma(v_load(l), a, sum));
        v_store(alpha, a);
    }
}

/* ---- the table ----------------------------------------------------------------------------------------------------- */

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

const attn_ukernel attn_ukernel_amx_f32 = {
    .name = "amx_f32",
    .strip = STRIP,
    .granule = 2 * TILE,
    .key_block = KEY_BLOCK,
    .key_step = KEY_STEP,
    .real_size = 4,
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
    .bias_lane = bias_lane_f32,
    .score = score_f32,
    .mask = mask_f32,
    .softmax = softmax,
    .pv = pv,
    .pv_careful = pv_careful,
    .finite = finite_f32,
    .store = store_f32,
};
