/*
 * codes_values.h: OT = V^T P from codes. P is multiplied by the scale of a key and rounded to bf16
 * once for each group of columns; codes are exact in bf16. Pairs are keys k and k + 1.
 *
 *     V   [dv_pad / 8][key / 2][8][2] numbers of codes, columns of two keys zipped, then
 *         [group][key] scales, then the columns of a group
 *     W   [key / 2][32][2]            P times a scale: dword (key / 2, lane)
 *
 * The key behind an odd number of them is zero.
 */
enum {
    V_KEYS = ATTN_KEY_BLOCK,
    V_RUN = V_KEYS * 8, /* numbers of 8 columns */
    W_GROUP = ATTN_KEY_BLOCK * STRIP
};

#include "cpu/ukernel/codes/panel.h"

static int64_t value_place(int64_t c, int64_t key)
{
    return c / 8 * V_RUN + key / 2 * 16 + c % 8 * 2 + key % 2;
}

/* ---- panels ---------------------------------------------------------------------------------- */

static void pack_v(void *v, int64_t at, const attn_rows *src, int64_t n, int64_t dv, int64_t dv_pad)
{
    *v_group(v, dv_pad) = src->codes.group < dv ? src->codes.group : dv_pad;
    for (int64_t row = 0; row < n; row++) {
        const int64_t key = at + row;
        uint16_t *to = (uint16_t *)v + key / 2 * 16;
        const bool values = !row_scales(v_scales(v, dv_pad) + key, ATTN_KEY_BLOCK, src, row, dv,
                                        src->codes.group);
        attn_fetch_soon(src->soon, dv);
        for (int64_t c = 0; c < dv_pad; c += 16, to += 2 * V_RUN) {
            const dwords x = row_numbers(src, row, c, dv, values);
            dwords pair = _mm512_srli_epi32(x, 16);
            if (key % 2) {
                pair = _mm512_or_si512(x, d_load_halves(to, to + V_RUN));
            }
            _mm256_storeu_si256((__m256i *)(void *)to, _mm512_castsi512_si256(pair));
            _mm256_storeu_si256((__m256i *)(void *)(to + V_RUN),
                                _mm512_extracti64x4_epi64(pair, 1));
        }
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* Columns first .. last-1 of OT = OT alpha + V^T W for `width` vectors of lanes; without alpha
 * (NULL) OT = V^T W. */
ATTN_INLINE void value_columns(float *ot, const float *alpha, const uint16_t *v, const uint16_t *w,
                               int64_t pairs, int64_t first, int64_t last, const int width)
{
    const int group = 16 / width;
    for (int64_t c = first; c < last; c += group) {
        const uint16_t *a = v + c / 8 * V_RUN, *b = w;
        vec sum[16];
        ATTN_UNROLL for (int i = 0; i < 16; i++) sum[i] = v_set1(0);
        for (int64_t pair = 0; pair < pairs; pair++, a += 16, b += 2 * STRIP) {
            dwords x[2];
            ATTN_UNROLL for (int i = 0; i < width; i++) x[i] = d_load(b + i * 2 * VL);
            ATTN_UNROLL for (int r = 0; r < group; r++)
            {
                const dwords one = d_pair(a + r / 8 * V_RUN + r % 8 * 2);
                ATTN_UNROLL for (int i = 0; i < width; i++) sum[r * width + i] =
                    add_pairs(sum[r * width + i], one, x[i]);
            }
        }
        ATTN_UNROLL for (int i = 0; i < 16; i++)
        {
            float *to = ot + (c + i / width) * STRIP + i % width * VL;
            v_store(to, alpha ? v_fma(v_load(to), v_load(alpha + i % width * VL), sum[i]) : sum[i]);
        }
    }
}

static void pv(void *ot, const void *v_, int64_t at, const void *p, int64_t dv_pad, int64_t n,
               const void *alpha, int lanes)
{
    void *v = (void *)(uintptr_t)v_;
    const uint16_t *pairs = (const uint16_t *)v_ + at / 2 * 16;
    const int64_t group = *v_group(v, dv_pad);
    uint16_t w[W_GROUP];
    for (int64_t c = 0; c < dv_pad; c += group) {
        const float *scale = v_scales(v, dv_pad) + c / group * ATTN_KEY_BLOCK + at;
        if (lanes > VL) {
            scale_weights(w, p, scale, 1, n, 2);
            value_columns(ot, alpha, pairs, w, (n + 1) / 2, c, c + group, 2);
        } else {
            scale_weights(w, p, scale, 1, n, 1);
            value_columns(ot, alpha, pairs, w, (n + 1) / 2, c, c + group, 1);
        }
    }
}

/* ---- few lanes: columns along them ----------------------------------------------------------- */

/* W of four lanes and n keys, the scales of which are `step` apart: [key / 2][4][2]. */
ATTN_INLINE void few_weights(uint16_t *w, const float *p, const float *scale, int64_t step,
                             int64_t n)
{
    for (int64_t key = 0; key < n; key += 4, w += 16, p += 4 * STRIP, scale += 4 * step) {
        const __mmask16 some = n - key < 4 ? (__mmask16)((1 << 4 * (n - key)) - 1) : 0xffff;
        const __m128 by = _mm_setr_ps(scale[0], scale[step], scale[2 * step], scale[3 * step]);
        const vec x = _mm512_maskz_mul_ps(some, v_load_quads((const float(*)[4])p, STRIP / 4),
                                          in_quarters(_mm512_zextps128_ps512(by), 0));
        const dwords y = d_rounded_number(x),
                     two = d_upper_halves(_mm512_shuffle_i32x4(y, y, 0x08),
                                          _mm512_shuffle_i32x4(y, y, 0x0d));
        _mm256_storeu_si256((__m256i *)(void *)w, _mm512_castsi512_si256(two));
    }
}

/* Columns of OT for four lanes: dword j of a quarter of sums is column first + j step, and the next
 * quarter `apart` columns on. */
ATTN_INLINE void few_columns_end(float *ot, const attn_values *v, int64_t first, int64_t step,
                                 int64_t apart, const vec *sum, const float *alpha)
{
    float column[VL][4];
    quads_f32(column, 1, sum);
    for (int64_t j = 0; j < VL; j++) {
        const int64_t at = first + j / 4 * apart + j % 4 * step;
        float *to = ot + at * STRIP;
        const vec x = v_load4(column[j]);
        if (at < v->dv_pad) {
            v_store4(to, alpha ? v_fma(v_load4(to), v_load4(alpha), x) : x);
        }
    }
}

/* Bytes c .. c+63 of a row of V, as far as in `some`; 0 for a row beyond n. */
ATTN_INLINE dwords few_codes(const attn_values *v, int64_t key, int64_t n, int64_t c,
                             __mmask64 some)
{
    return key < n ? _mm512_maskz_loadu_epi8(some, v->rows[key] + c) : d_zero();
}

/* The bytes of a row from byte c on, of 64. */
ATTN_INLINE __mmask64 few_bytes(int64_t bytes, int64_t c)
{
    return bytes - c < 64 ? ((__mmask64)1 << (bytes - c)) - 1 : ~(__mmask64)0;
}

/* Adds the products of two keys with 64 columns to the sums of `rows` lanes; vector i of sums has
 * columns 4 i .. 4 i + 3 of each 16. The upper 32 columns may have weights of their own. */
ATTN_INLINE void add_two_keys(vec (*sum)[4], dwords x, dwords y, const uint16_t *w,
                              const uint16_t *upper, const numbers *of, const int32_t dtype,
                              const int rows)
{
    dwords zip[2] = {_mm512_unpacklo_epi8(x, y), _mm512_unpackhi_epi8(x, y)}, one[4];
    ATTN_UNROLL for (int r = 0; r < rows; r++)
    {
        one[r] = d_pair(w + 2 * r);
        if (upper) {
            one[r] = _mm512_mask_mov_epi32(one[r], 0xff00, d_pair(upper + 2 * r));
        }
    }
    ATTN_UNROLL for (int i = 0; i < 2; i++)
    {
        dwords low, high;
        number_halves(&low, &high, zip[i], of, dtype);
        const dwords a = _mm512_unpacklo_epi8(low, high), b = _mm512_unpackhi_epi8(low, high);
        ATTN_UNROLL for (int r = 0; r < rows; r++) sum[2 * i][r] =
            add_pairs(sum[2 * i][r], a, one[r]);
        ATTN_UNROLL for (int r = 0; r < rows; r++) sum[2 * i + 1][r] =
            add_pairs(sum[2 * i + 1][r], b, one[r]);
    }
}

/* 64 columns of OT from c on, as far as there are, for 4 lanes, of which `rows` have rows. */
ATTN_INLINE void few_columns(float *ot, const attn_values *v, int64_t c, const uint16_t *w,
                             const uint16_t *upper, int64_t n, const float *alpha,
                             const int32_t dtype, const int rows)
{
    const numbers of = numbers_of(dtype);
    const __mmask64 some = few_bytes(v->dv, c);
    vec sum[4][4];
    ATTN_UNROLL for (int i = 0; i < 16; i++) sum[i / 4][i % 4] = v_set1(0);
    for (int64_t key = 0; key < n; key += 2, w += 8) {
        attn_fetch_soon(v->soon, 4 * 64); /* twice: in attn_values of rows, see pack.c */
        add_two_keys(sum, few_codes(v, key, n, c, some), few_codes(v, key + 1, n, c, some), w,
                     upper, &of, dtype, rows);
        if (upper) {
            upper += 8;
        }
    }
    ATTN_UNROLL for (int i = 0; i < 4; i++) few_columns_end(ot, v, c + 4 * i, 1, 16, sum[i], alpha);
}

ATTN_INLINE void few_values(float *ot, const attn_values *v, const float *p, int64_t n,
                            const float *alpha, int lanes, const int32_t dtype, const int rows)
{
    uint16_t w[MOST_GROUPS][ATTN_KEY_BLOCK * 4];
    for (int lane = 0; lane < lanes; lane += 4) {
        for (int64_t group = 0; group < v->groups; group++) {
            few_weights(w[group], p + lane, v->scale + group, v->groups, n);
        }
        for (int64_t c = 0; c < v->dv_pad; c += 64) {
            const int64_t group = c / v->group, next = (c + 32) / v->group;
            if (next == group || next == v->groups) {
                few_columns(ot + lane, v, c, w[group], NULL, n, alpha ? alpha + lane : NULL, dtype,
                            rows);
            } else {
                few_columns(ot + lane, v, c, w[group], w[next], n, alpha ? alpha + lane : NULL,
                            dtype, rows);
            }
        }
    }
}

ATTN_INLINE void few_or_one_values(float *ot, const attn_values *v, const float *p, int64_t n,
                                   const float *alpha, int lanes, const int32_t dtype)
{
    if (lanes == 1) {
        few_values(ot, v, p, n, alpha, lanes, dtype, 1);
    } else {
        few_values(ot, v, p, n, alpha, lanes, dtype, 4);
    }
}

/* ---- the same of i4x2: 128 columns in two turns, a quarter 32 columns ------------------------ */

/* Numbers of four lanes, times the scale of a key for each quarter, which is of groups `of`. */
ATTN_INLINE dwords quarter_weights(const attn_values *v, const float *p, int64_t key, __m512i of)
{
    const vec scales =
        _mm512_maskz_loadu_ps((__mmask16)((1 << v->groups) - 1), v->scale + key * v->groups);
    return d_rounded_number(v_mul(v_repeat_quad(v_load4(p)), _mm512_permutexvar_ps(of, scales)));
}

/* W of four lanes, n keys and 128 columns from c on: [key / 2][quarter][4][2]. */
ATTN_INLINE void nibble_weights(uint16_t *w, const attn_values *v, const float *p, int64_t n,
                                int64_t c)
{
    int32_t group[VL];
    for (int i = 0; i < VL; i++) {
        const int64_t of = (c + i / 4 * 32) / v->group;
        group[i] = (int32_t)(of < v->groups ? of : 0);
    }
    const __m512i of = d_load(group);
    for (int64_t key = 0; key < n; key += 2, w += 2 * VL, p += 2 * STRIP) {
        const dwords odd = key + 1 < n ? quarter_weights(v, p + STRIP, key + 1, of) : d_zero();
        d_store(w, d_upper_halves(quarter_weights(v, p, key, of), odd));
    }
}

/* Half of 128 columns of OT from c on, as far as there are, for four lanes, or for the first one
 * `only`: the lower or the upper 16 of each 32. */
ATTN_INLINE void nibble_columns(float *ot, const attn_values *v, int64_t c, const uint16_t *w,
                                int64_t n, const float *alpha, const bool upper,
                                const bool only)
{
    const numbers of = numbers_of(ATTN_I4X2);
    const __mmask64 some = few_bytes(v->dv / 2, c / 2);
    vec sum[4][4];
    ATTN_UNROLL for (int i = 0; i < 16; i++) sum[i / 4][i % 4] = v_set1(0);
    for (int64_t key = 0; key < n; key += 2, w += 2 * VL) {
        const dwords x = few_codes(v, key, n, c / 2, some),
                     y = few_codes(v, key + 1, n, c / 2, some), one = d_load(w);
        dwords zip = upper ? _mm512_unpackhi_epi16(x, y) : _mm512_unpacklo_epi16(x, y);
        attn_fetch_soon(v->soon, 4 * 64);
        ATTN_UNROLL for (int i = 0; i < 4; i++, zip = _mm512_srli_epi16(zip, 4))
        {
            const dwords z = nibble_numbers(zip, &of);
            sum[i][0] = add_pairs(sum[i][0], z, _mm512_shuffle_epi32(one, 0x00));
            if (only) {
                continue;
            }
            sum[i][1] = add_pairs(sum[i][1], z, _mm512_shuffle_epi32(one, 0x55));
            sum[i][2] = add_pairs(sum[i][2], z, _mm512_shuffle_epi32(one, 0xaa));
            sum[i][3] = add_pairs(sum[i][3], z, _mm512_shuffle_epi32(one, 0xff));
        }
    }
    ATTN_UNROLL for (int i = 0; i < 4; i++)
        few_columns_end(ot, v, c + 16 * upper + i, 4, 32, sum[i], alpha);
}

ATTN_INLINE void few_nibbles(float *ot, const attn_values *v, const float *p, int64_t n,
                             const float *alpha, int lanes, const bool only)
{
    uint16_t w[ATTN_KEY_BLOCK * VL];
    for (int lane = 0; lane < lanes; lane += 4) {
        for (int64_t c = 0; c < v->dv_pad; c += 128) {
            nibble_weights(w, v, p + lane, n, c);
            const float *by = alpha ? alpha + lane : NULL;
            nibble_columns(ot + lane, v, c, w, n, by, false, only);
            nibble_columns(ot + lane, v, c, w, n, by, true, only);
        }
    }
}

static void pv_few(void *ot, const attn_values *v, const void *p, int64_t n, const void *alpha,
                   int lanes)
{
    switch (v->dtype) {
    case ATTN_I8:
        few_or_one_values(ot, v, p, n, alpha, lanes, ATTN_I8);
        return;
    case ATTN_I4X2:
        if (lanes == 1) {
            few_nibbles(ot, v, p, n, alpha, lanes, true);
        } else {
            few_nibbles(ot, v, p, n, alpha, lanes, false);
        }
        return;
    case ATTN_E4M3:
        few_or_one_values(ot, v, p, n, alpha, lanes, ATTN_E4M3);
        return;
    default:
        few_or_one_values(ot, v, p, n, alpha, lanes, ATTN_E5M2);
    }
}

/* True for rows whose groups pv_few takes; of columns of one. */
static bool takes_rows(int32_t dtype, int64_t columns)
{
    (void)dtype;
    return columns > 0 && columns % 32 == 0;
}
