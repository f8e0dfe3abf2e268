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
    V_RUN = ATTN_KEY_BLOCK * 8, /* numbers of 8 columns */
    W_GROUP = ATTN_KEY_BLOCK * STRIP
};

static float *v_scales(void *v, int64_t dv_pad)
{
    return (float *)(void *)((uint16_t *)v + ATTN_KEY_BLOCK * dv_pad);
}

static int64_t *v_group(void *v, int64_t dv_pad)
{
    return (int64_t *)(void *)(v_scales(v, dv_pad) + (dv_pad / 32 + 1) * ATTN_KEY_BLOCK);
}

static uint64_t v_bytes(int64_t dv_pad)
{
    return ATTN_KEY_BLOCK * ((uint64_t)dv_pad * 2 + ((uint64_t)dv_pad / 32 + 1) * sizeof(float)) +
           sizeof(int64_t);
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

static bool clean_v(void *to_, const void *v_, int64_t at, int64_t n, int64_t dv_pad,
                    const attn_specials *found)
{
    void *from = (void *)(uintptr_t)v_;
    const float *scale = v_scales(from, dv_pad);
    const int64_t group = *v_group(from, dv_pad);
    bool any = false;
    memmove(to_, v_, v_bytes(dv_pad));
    memset(found->plus, 0, (size_t)dv_pad * sizeof *found->plus);
    memset(found->minus, 0, (size_t)dv_pad * sizeof *found->minus);
    for (int64_t c = 0; c < dv_pad; c++) {
        for (int64_t key = at; key < at + n; key++) {
            uint16_t *x = (uint16_t *)to_ + c / 8 * V_RUN + key / 2 * 16 + c % 8 * 2 + key % 2;
            const float code = attn_bf16_to_f32(*x),
                        value = code * scale[c / group * ATTN_KEY_BLOCK + key];
            if (code - code != 0) {
                found->plus[c] |= (uint64_t)!(value < 0) << key;
                found->minus[c] |= (uint64_t)!(value > 0) << key;
                *x = 0, any = true;
            }
        }
    }
    return any;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* W of n keys, the scales of which are `step` apart, and `width` vectors of lanes. A NaN stays one:
 * results tell by it that they must be done again. */
ATTN_INLINE void scale_weights(uint16_t *w, const float *p, const float *scale, int64_t step,
                               int64_t n, const int width)
{
    for (int64_t key = 0; key < n; key += 2, w += 2 * STRIP, p += 2 * STRIP) {
        ATTN_UNROLL for (int i = 0; i < width; i++)
        {
            const vec a = v_mul(v_load(p + i * VL), v_set1(scale[key * step]));
            dwords odd = d_zero();
            if (key + 1 < n) {
                odd = d_rounded_number(
                    v_mul(v_load(p + STRIP + i * VL), v_set1(scale[(key + 1) * step])));
            }
            d_store(w + i * 2 * VL, d_upper_halves(d_rounded_number(a), odd));
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

/* The codes of 64 columns from c on of a row of V below n, or zeros. */
ATTN_INLINE dwords few_codes(const attn_values *v, int64_t key, int64_t n, int64_t c)
{
    const int64_t left = v->dv - c;
    const __mmask64 all = left >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << left) - 1,
                    columns = key < n ? all : 0;
    return _mm512_maskz_loadu_epi8(columns, columns ? v->rows[key] + c : NULL);
}

/* Adds the products of two keys with 64 columns to the sums of 4 lanes; vector i of sums has
 * columns 4 i .. 4 i + 3 of each 16. The upper 32 columns may have weights of their own. */
ATTN_INLINE void add_two_keys(vec (*sum)[4], dwords x, dwords y, const uint16_t *w,
                              const uint16_t *upper, const numbers *of, const int32_t dtype)
{
    dwords zip[2] = {_mm512_unpacklo_epi8(x, y), _mm512_unpackhi_epi8(x, y)}, one[4];
    ATTN_UNROLL for (int r = 0; r < 4; r++)
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
        ATTN_UNROLL for (int r = 0; r < 4; r++) sum[2 * i][r] = add_pairs(sum[2 * i][r], a, one[r]);
        ATTN_UNROLL for (int r = 0; r < 4; r++) sum[2 * i + 1][r] =
            add_pairs(sum[2 * i + 1][r], b, one[r]);
    }
}

/* 64 columns of OT from c on, as far as there are, for 4 lanes. */
ATTN_INLINE void few_columns(float *ot, const attn_values *v, int64_t c, const uint16_t *w,
                             const uint16_t *upper, int64_t n, const float *alpha,
                             const int32_t dtype)
{
    const numbers of = numbers_of(dtype);
    vec sum[4][4];
    ATTN_UNROLL for (int i = 0; i < 4; i++)
    {
        ATTN_UNROLL for (int r = 0; r < 4; r++) sum[i][r] = v_set1(0);
    }
    for (int64_t key = 0; key < n; key += 2, w += 2 * STRIP) {
        attn_fetch_soon(v->soon, 4 * 64); /* twice: in attn_values of rows, see pack.c */
        add_two_keys(sum, few_codes(v, key, n, c), few_codes(v, key + 1, n, c), w, upper, &of,
                     dtype);
        if (upper) {
            upper += 2 * STRIP;
        }
    }
    ATTN_UNROLL for (int i = 0; i < 4; i++)
    {
        float column[VL][4];
        quads_f32(column, 1, sum[i]);
        for (int64_t j = 0; j < VL; j++) {
            const int64_t at = c + j / 4 * 16 + 4 * i + j % 4;
            float *to = ot + at * STRIP;
            const vec x = v_load4(column[j]);
            if (at < v->dv_pad) {
                v_store4(to, alpha ? v_fma(v_load4(to), v_load4(alpha), x) : x);
            }
        }
    }
}

ATTN_INLINE void few_values(float *ot, const attn_values *v, const float *p, int64_t n,
                            const float *alpha, int lanes, const int32_t dtype)
{
    uint16_t w[MOST_GROUPS][W_GROUP];
    for (int64_t group = 0; group < v->groups; group++) {
        scale_weights(w[group], p, v->scale + group, v->groups, n, 1);
    }
    for (int lane = 0; lane < lanes; lane += 4) {
        for (int64_t c = 0; c < v->dv_pad; c += 64) {
            const int64_t group = c / v->group, next = (c + 32) / v->group;
            const uint16_t *at = w[group] + 2 * lane;
            if (next == group || next == v->groups) {
                few_columns(ot + lane, v, c, at, NULL, n, alpha ? alpha + lane : NULL, dtype);
            } else {
                few_columns(ot + lane, v, c, at, w[next] + 2 * lane, n,
                            alpha ? alpha + lane : NULL, dtype);
            }
        }
    }
}

static void pv_few(void *ot, const attn_values *v, const void *p, int64_t n, const void *alpha,
                   int lanes)
{
    switch (v->dtype) {
    case ATTN_I8:
        few_values(ot, v, p, n, alpha, lanes, ATTN_I8);
        return;
    case ATTN_E4M3:
        few_values(ot, v, p, n, alpha, lanes, ATTN_E4M3);
        return;
    default:
        few_values(ot, v, p, n, alpha, lanes, ATTN_E5M2);
    }
}

/* True for rows whose groups pv_few takes; of columns of one. */
static bool takes_rows(int32_t dtype, int64_t columns)
{
    (void)dtype;
    return columns > 0 && columns % 32 == 0;
}
