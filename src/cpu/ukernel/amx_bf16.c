/*
 * amx_bf16.c: the table for bf16 on AMX tiles (Sapphire Rapids and later): both products are tile products of bf16 with
 * f32 sums, probabilities are rounded to bf16 for the second one. Scores, masks and results are those of AVX-512.
 *
 *     K   [key][d_pad]              bf16, d_pad = d rounded up to 32, padding zero
 *     QT  [d_pad / 2][32][2]        bf16: dword (c/2, query) holds columns c and c + 1
 *     V   [dv_pad][KEY_BLOCK + 32]  bf16, transposed; keys from the last packed one to a multiple of 32 are zero
 *     P   [key / 2][32][2]          bf16, in place of S: 128 bytes per pair of keys where S has 128 per key
 */
#include "amx_tiles.h"

/* ---- packing ------------------------------------------------------------------------------------------------------ */

/* Columns c .. c+31 of a row of n columns; zero beyond n or for a NULL row. */
static __m512i load_columns(const void *row, int64_t stride, int64_t c, int64_t n)
{
    const uint16_t *h = row;
    if (row && stride == 1) {
        int64_t left = n - c;
        return _mm512_maskz_loadu_epi16(left >= 32 ? 0xffffffffu : left > 0 ? (1u << left) - 1 : 0, h + c);
    }
    uint16_t column[32] = {0};
    for (int64_t i = 0; row && i < 32 && c + i < n; i++) {
        column[i] = h[(c + i) * stride];
    }
    return _mm512_loadu_si512(column);
}

static void pack_k(void *k, int64_t at, const attn_rows *src, int64_t n, int64_t d)
{
    int64_t d_pad = pad32(d);
    for (int64_t key = 0; key < n; key++) {
        uint16_t *to = (uint16_t *)k + (at + key) * d_pad;
        const uint16_t *row = (const uint16_t *)src->data + key * src->row_stride;
        if (src->col_stride == 1 && d == d_pad) {
            memcpy(to, row, (size_t)d * sizeof *to);
            continue;
        }
        for (int64_t c = 0; c < d_pad; c += 32) {
            _mm512_storeu_si512(to + c, load_columns(row, src->col_stride, c, d));
        }
    }
}

/* 32 keys x 32 columns: pairs of keys interleaved to dwords, even and odd columns apart, then transposed. */
static void pack_v_block(uint16_t *v, const attn_rows *src, int64_t key, int64_t n, int64_t c, int64_t dv, int64_t dv_pad)
{
    __m512i even[16], odd[16];
    for (int pair = 0; pair < 16; pair++) {
        const uint16_t *row = (const uint16_t *)src->data + (key + 2 * pair) * src->row_stride;
        __m512i a = load_columns(key + 2 * pair < n ? row : NULL, src->col_stride, c, dv);
        __m512i b = load_columns(key + 2 * pair + 1 < n ? row + src->row_stride : NULL, src->col_stride, c, dv);
        even[pair] = _mm512_mask_blend_epi16(0xaaaaaaaau, a, _mm512_slli_epi32(b, 16));
        odd[pair] = _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(a, 16), b);
    }
    uint32_t block[32][16]; /* [column][pair] */
    transpose16(block[0], 32, even);
    transpose16(block[1], 32, odd);
    for (int i = 0; i < 32 && c + i < dv_pad; i++) {
        memcpy(v + (c + i) * PANEL_KEYS + key, block[i], sizeof block[i]);
    }
}

static void pack_v(void *v_, int64_t at, const attn_rows *src, int64_t n, int64_t dv, int64_t dv_pad)
{
    uint16_t *v = (uint16_t *)v_ + at;
    for (int64_t key = 0; key < n; key += KEY_STEP) {
        for (int64_t c = 0; c < dv_pad; c += 32) {
            pack_v_block(v, src, key, n, c, dv, dv_pad);
        }
    }
}

/* Rows of Q with another factor than 1: rare, so through a copy. */
static __m512i scaled_columns(__m512i x, double factor)
{
    uint16_t h[32];
    _mm512_storeu_si512(h, x);
    for (int i = 0; i < 32; i++) {
        h[i] = attn_f32_to_bf16(attn_bf16_to_f32(h[i]) * (float)factor);
    }
    return _mm512_loadu_si512(h);
}

static void pack_q(void *qt, const void *const *row, int64_t stride, int32_t dtype, int64_t d, double factor)
{
    (void)dtype;
    for (int64_t c = 0; c < d; c += 32) {
        for (int lane = 0; lane < STRIP; lane += TILE) {
            __m512i x[TILE];
            for (int i = 0; i < TILE; i++) {
                x[i] = load_columns(row[lane + i], stride, c, d);
                if (factor != 1) {
                    x[i] = scaled_columns(x[i], factor);
                }
            }
            transpose16((uint32_t *)qt + c / 2 * STRIP + lane, STRIP, x);
        }
    }
}

/* ---- products ------------------------------------------------------------------------------------------------------ */

/* d <= 64: QT stays in tiles 4..7. */
static void qk_narrow(float *s, const uint16_t *k, const uint16_t *qt, int64_t d_pad, int64_t n)
{
    TILE_LOAD(4, qt, S_STRIDE);
    TILE_LOAD(5, qt + 32, S_STRIDE);
    if (d_pad > 32) {
        TILE_LOAD(6, qt + 16 * 64, S_STRIDE);
        TILE_LOAD(7, qt + 16 * 64 + 32, S_STRIDE);
    }
    for (int64_t key = 0; key < n; key += TILE, k += TILE * d_pad, s += TILE * STRIP) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_LOAD(2, k, d_pad * 2);
        TILE_DP(0, 2, 4);
        TILE_DP(1, 2, 5);
        if (d_pad > 32) {
            TILE_LOAD(3, k + 32, d_pad * 2);
            TILE_DP(0, 3, 6);
            TILE_DP(1, 3, 7);
        }
        TILE_STORE(0, s, S_STRIDE);
        TILE_STORE(1, s + TILE, S_STRIDE);
    }
}

/* 32 keys x 32 queries at once in tiles 0..3. */
static void qk_wide(float *s, const uint16_t *k, const uint16_t *qt, int64_t d_pad, int64_t n)
{
    for (int64_t key = 0; key < n; key += 2 * TILE, k += 2 * TILE * d_pad, s += 2 * TILE * STRIP) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        for (int64_t c = 0; c < d_pad; c += 32) {
            TILE_LOAD(4, k + c, d_pad * 2);
            TILE_LOAD(6, qt + c * 32, S_STRIDE);
            TILE_LOAD(7, qt + c * 32 + 32, S_STRIDE);
            TILE_DP(0, 4, 6);
            TILE_DP(1, 4, 7);
            TILE_LOAD(5, k + TILE * d_pad + c, d_pad * 2);
            TILE_DP(2, 5, 6);
            TILE_DP(3, 5, 7);
        }
        TILE_STORE(0, s, S_STRIDE);
        TILE_STORE(1, s + TILE, S_STRIDE);
        TILE_STORE(2, s + TILE * STRIP, S_STRIDE);
        TILE_STORE(3, s + TILE * STRIP + TILE, S_STRIDE);
    }
}

static void qk(void *s, const void *k, int64_t at, const void *qt, int64_t d, int64_t n)
{
    int64_t d_pad = pad32(d);
    if (d_pad == 0) {
        memset(s, 0, (size_t)n * S_STRIDE);
        return;
    }
    (d_pad <= 64 ? qk_narrow : qk_wide)(s, (const uint16_t *)k + at * d_pad, qt, d_pad, n);
}

static void pv(void *ot_, const void *v_, int64_t at, const void *p, int64_t dv_pad, int64_t n, const void *alpha)
{
    float sum[2 * TILE * STRIP] __attribute__((aligned(64)));
    for (int64_t c = 0; c < dv_pad; c += 2 * TILE) {
        const uint16_t *v = (const uint16_t *)v_ + c * PANEL_KEYS + at;
        const char *pair = p;
        bool two = c + TILE < dv_pad;
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        for (int64_t key = 0; key < n; key += KEY_STEP, pair += KEY_STEP / 2 * S_STRIDE) {
            TILE_LOAD(4, v + key, PANEL_KEYS * 2);
            TILE_LOAD(6, pair, S_STRIDE);
            TILE_LOAD(7, pair + 64, S_STRIDE);
            TILE_DP(0, 4, 6);
            TILE_DP(1, 4, 7);
            if (two) {
                TILE_LOAD(5, v + TILE * PANEL_KEYS + key, PANEL_KEYS * 2);
                TILE_DP(2, 5, 6);
                TILE_DP(3, 5, 7);
            }
        }
        TILE_STORE(0, sum, S_STRIDE);
        TILE_STORE(1, sum + TILE, S_STRIDE);
        TILE_STORE(2, sum + TILE * STRIP, S_STRIDE);
        TILE_STORE(3, sum + TILE * STRIP + TILE, S_STRIDE);
        add_rows((float *)ot_ + c * STRIP, sum, alpha);
        if (two) {
            add_rows((float *)ot_ + (c + TILE) * STRIP, sum + TILE * STRIP, alpha);
        }
    }
}

static void pv_careful(void *ot, const void *v_, int64_t at, const void *p_, int64_t dv_pad, int64_t n,
                       const void *alpha, const unsigned char *visible)
{
    const uint16_t *p = p_;
    for (int64_t c = 0; c < dv_pad; c++) {
        const uint16_t *v = (const uint16_t *)v_ + c * PANEL_KEYS + at;
        for (int lane = 0; lane < STRIP; lane++) {
            float sum = 0, *o = (float *)ot + c * STRIP + lane;
            for (int64_t key = 0; key < n; key++) {
                if (visible[key * STRIP + lane]) {
                    float w = attn_bf16_to_f32(p[(key / 2 * STRIP + lane) * 2 + key % 2]);
                    sum = fmaf(attn_bf16_to_f32(v[key]), w, sum);
                }
            }
            *o = fmaf(*o, ((const float *)alpha)[lane], sum);
        }
    }
}

/* ---- softmax ------------------------------------------------------------------------------------------------------- */

/* 2^z for z <= 0, exact at 0, 0 below 2^-126, NaN for NaN. On [0, 1), the polynomial is within 8.2e-8 of 2^f: enough for
 * LSE; for bf16 probabilities alone, degree 3 would do. */
ATTN_INLINE vec exp2_floor(vec z)
{
    vec f = _mm512_reduce_ps(z, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); /* z - floor(z) */
    vec y = v_fma(v_set1(0.001867130212f), f, v_set1(0.009017029963f));
    y = v_fma(v_fma(y, f, v_set1(0.05579991343f)), f, v_set1(0.24016445f));
    y = v_fma(v_fma(y, f, v_set1(0.6931513118f)), f, v_set1(1));
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(z, v_set1(-126), _CMP_NLT_UQ), y, z);
}

/* dword = bf16(a) | bf16(b) << 16, rounded to nearest. */
ATTN_INLINE __m512i pair_bf16(vec a, vec b)
{
    const __m512i half = _mm512_set1_epi32(0x8000);
    __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(a), half), 16);
    __m512i high = _mm512_add_epi32(_mm512_castps_si512(b), half);
    return _mm512_mask_blend_epi16(0xaaaaaaaau, low, high);
}

static void softmax(void *p_, void *s_, int64_t n, double c_, void *m_, void *l_, void *alpha_)
{
    float *s = s_, *m = m_, *l = l_, *alpha = alpha_;
    const vec c = v_set1((float)c_), least = v_set1(-REAL_MAX), zero = v_set1(0);
    char *p = p_;
    if (n % 2) {
        for (int i = 0; i < STRIP; i++) {
            s[n * STRIP + i] = -INFINITY;
        }
        n++;
    }
    vec shift[2], sum[2][2];
    for (int g = 0; g < 2; g++) {
        vec old = v_load(m + g * VL), top = top_rows(s + g * VL, n, old);
        vec used = v_zero_lt(top, least, top); /* nothing seen yet: any finite reference */
        shift[g] = v_mul(used, c);
        v_store(m + g * VL, top);
        v_store(alpha + g * VL, exp2_floor(v_mul(v_sub(old, used), c)));
        sum[g][0] = sum[g][1] = zero;
    }
    for (int64_t key = 0; key < n; key += 2) {
        __m512i pair[2];
        ATTN_UNROLL for (int g = 0; g < 2; g++) {
            vec a = exp2_floor(v_fms(v_load(s + key * STRIP + g * VL), c, shift[g]));
            vec b = exp2_floor(v_fms(v_load(s + (key + 1) * STRIP + g * VL), c, shift[g]));
            sum[g][0] = v_add(sum[g][0], a);
            sum[g][1] = v_add(sum[g][1], b);
            pair[g] = pair_bf16(a, b);
        }
        _mm512_storeu_si512(p + key / 2 * S_STRIDE, pair[0]);
        _mm512_storeu_si512(p + key / 2 * S_STRIDE + 64, pair[1]);
    }
    memset(p + n / 2 * S_STRIDE, 0, (size_t)((pad32(n) - n) / 2) * S_STRIDE);
    for (int g = 0; g < 2; g++) {
        vec block = v_add(sum[g][0], sum[g][1]);
        v_store(l + g * VL, v_fma(v_load(l + g * VL), v_load(alpha + g * VL), block));
    }
}

/* ---- the table ----------------------------------------------------------------------------------------------------- */

static uint64_t k_bytes(int64_t d)
{
    return (uint64_t)PANEL_KEYS * (uint64_t)pad32(d) * 2;
}

static uint64_t v_bytes(int64_t dv_pad)
{
    return (uint64_t)PANEL_KEYS * (uint64_t)dv_pad * 2;
}

static uint64_t q_bytes(int64_t d)
{
    return (uint64_t)pad32(d) * STRIP * 2;
}

static uint64_t p_bytes(void)
{
    return 0;
}

const attn_ukernel attn_ukernel_amx_bf16 = {
    .name = "amx_bf16",
    .strip = STRIP,
    .granule = TILE,
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
