/*
 * codes_scores.h: S = K QT from codes. A score is the sum of a chain of products for each 32
 * columns, times the scale of these: their codes and Q are exact in bf16. Pairs are columns c and
 * c + 2 of each four.
 *
 *     K   [key][pad32(d)] numbers of codes, then [key][pad32(d) / 32] scales
 *     QT  [pad32(d) / 2][32][2]
 */
enum { PANEL_KEYS = ATTN_KEY_BLOCK + 8 /* products read eight keys at a time */ };

static int64_t pad32(int64_t d)
{
    return (d + 31) / 32 * 32;
}

static uint64_t k_bytes(int64_t d)
{
    return PANEL_KEYS * ((uint64_t)pad32(d) * 2 + (uint64_t)pad32(d) / 32 * sizeof(float));
}

static uint64_t q_bytes(int64_t d)
{
    return (uint64_t)pad32(d) * STRIP * 2;
}

static float *k_scales(void *k, int64_t d)
{
    return (float *)(void *)((uint16_t *)k + PANEL_KEYS * pad32(d));
}

/* The order of 32 columns in pairs. */
ATTN_INLINE __m512i pair_order(void)
{
    const __m512i four = _mm512_set1_epi64(0x0003000100020000),
                  of = _mm512_setr_epi64(0, 4, 8, 12, 16, 20, 24, 28);
    return _mm512_add_epi16(four, _mm512_mullo_epi64(of, _mm512_set1_epi64(0x0001000100010001)));
}

/* ---- panels ---------------------------------------------------------------------------------- */

static void pack_k(void *k, int64_t at, const attn_rows *src, int64_t n, int64_t d)
{
    const int64_t d_pad = pad32(d);
    const __m512i odd = _mm512_add_epi16(_mm512_add_epi16(pair_order(), pair_order()),
                                         _mm512_set1_epi16(1)); /* upper halves */
    uint16_t *to = (uint16_t *)k + at * d_pad;
    float *scale = k_scales(k, d) + at * d_pad / 32;
    for (int64_t row = 0; row < n; row++, scale += d_pad / 32) {
        const bool values = !row_scales(scale, 1, src, row, d, 32);
        for (int64_t c = 0; c < d_pad; c += 32, to += 32) {
            attn_fetch_soon(src->soon, 32);
            const dwords low = row_numbers(src, row, c, d, values),
                         high = row_numbers(src, row, c + 16, d, values);
            d_store(to, _mm512_permutex2var_epi16(low, odd, high));
        }
    }
}

/* Columns c .. c+31 of a row of Q in pairs, times a factor; 0 for NULL. */
ATTN_INLINE dwords q_pairs(const uint16_t *row, int64_t stride, int64_t c, int64_t d, vec factor)
{
    uint16_t column[32] = {0};
    for (int64_t i = c; row && i < c + 32 && i < d; i++) {
        column[i - c] = row[i * stride];
    }
    const dwords x = _mm512_permutexvar_epi16(pair_order(), d_load(column));
    return d_pairs(v_mul(d_floats(x), factor), v_mul(d_odd_floats(x), factor));
}

static void pack_q(void *qt, const void *const *row, int64_t stride, int32_t dtype, int64_t d,
                   double factor, int lanes)
{
    (void)dtype;
    for (int64_t c = 0; c < d; c += 32) {
        for (int lane = 0; lane < lanes; lane += VL) {
            dwords x[VL];
            for (int i = 0; i < VL; i++) {
                x[i] = q_pairs(row[lane + i], stride, c, d, v_set1((float)factor));
            }
            transpose16((uint32_t *)qt + c / 2 * STRIP + lane, STRIP, x);
        }
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* Scores of `rows` keys and `width` vectors of lanes. */
ATTN_INLINE void score_keys(float *s, const uint16_t *k, const float *scale, const uint16_t *q,
                            int64_t d_pad, const int rows, const int width)
{
    vec sum[8], chain[8];
    ATTN_UNROLL for (int i = 0; i < 8; i++) sum[i] = v_set1(0);
    for (int64_t c = 0; c < d_pad; c += 32, k += 32) {
        ATTN_UNROLL for (int i = 0; i < 8; i++) chain[i] = v_set1(0);
        ATTN_UNROLL_4 for (int pair = 0; pair < 16; pair++, q += 2 * STRIP)
        {
            dwords x[2];
            ATTN_UNROLL for (int v = 0; v < width; v++) x[v] = d_load(q + v * 2 * VL);
            ATTN_UNROLL for (int r = 0; r < rows; r++)
            {
                const dwords one = d_pair(k + r * d_pad + 2 * pair);
                ATTN_UNROLL for (int v = 0; v < width; v++) chain[r * width + v] =
                    add_pairs(chain[r * width + v], one, x[v]);
            }
        }
        ATTN_UNROLL for (int i = 0; i < 8; i++)
        {
            const vec by = v_set1(scale[i / width * (d_pad / 32) + c / 32]);
            sum[i] = c > 0 ? v_fma(chain[i], by, sum[i]) : v_mul(chain[i], by);
        }
    }
    ATTN_UNROLL for (int i = 0; i < 8; i++) v_store(s + i / width * STRIP + i % width * VL, sum[i]);
}

static void qk(void *s_, const void *k_, int64_t at, const void *qt, int64_t d, int64_t n,
               int lanes)
{
    const int64_t d_pad = pad32(d);
    const uint16_t *k = (const uint16_t *)k_ + at * d_pad, *q = qt;
    const float *scale = k_scales((void *)(uintptr_t)k_, d) + at * d_pad / 32;
    const int rows = lanes > VL ? 4 : 8;
    float *s = s_;
    for (int64_t key = 0; key < n; key += rows, k += rows * d_pad, s += rows * STRIP) {
        if (lanes > VL) {
            score_keys(s, k, scale + key * d_pad / 32, q, d_pad, 4, 2);
        } else {
            score_keys(s, k, scale + key * d_pad / 32, q, d_pad, 8, 1);
        }
    }
}

static void qk_softmax(void *p, int64_t done, void *s, const attn_keys *keys, double c,
                       const attn_running *state, int lanes)
{
    qk(s, keys->k, keys->at, keys->qt, keys->d, keys->n, lanes);
    softmax_f32(p, done, s, keys->n, c, state, lanes);
}

/* ---- few lanes: keys along them -------------------------------------------------------------- */

enum { MOST_GROUPS = 16 };

/* Scales of keys key .. key+15; those beyond n - 1 are that of this key. False if one is not
 * finite. */
ATTN_INLINE bool few_scales(float (*scale)[VL], const attn_row_codes *codes, int64_t key, int64_t n,
                            int64_t groups)
{
    const bool together = codes->scale_row == 1 && key + VL <= n;
    bool finite = true;
    for (int64_t group = 0; group < groups; group++) {
        const int64_t at = key * codes->scale_row + group * codes->scale_group;
        if (codes->scale && together && codes->dtype == ATTN_F32) {
            v_store(scale[group], v_load((const float *)codes->scale + at));
        } else if (codes->scale && together && codes->dtype == ATTN_F16) {
            v_store(scale[group], v_load_f16((const uint16_t *)codes->scale + at));
        } else {
            for (int i = 0; i < VL; i++) {
                scale[group][i] = attn_row_scale(codes, key + i < n ? key + i : n - 1, group);
            }
        }
        const vec x = v_load(scale[group]);
        finite &= v_eq(v_sub(x, x), v_set1(0)) == 0xffff;
    }
    return finite;
}

/* x[i] = dword i of 32 bytes from byte c on of 16 rows. */
ATTN_INLINE void code_columns(dwords *x, const char *const *row, int64_t c)
{
    ATTN_UNROLL for (int i = 0; i < 8; i++)
    {
        x[i] = d_load_halves(row[ROW_OF_HALF(i)] + c, row[ROW_OF_HALF(i) + 4] + c);
    }
    d_half_columns(x);
}

/* Scores of 16 keys for `rows` lanes. */
ATTN_INLINE void few_keys(vec *sum, const char *const *row, const float (*scale)[VL],
                          const attn_rows *k, const uint16_t *q, int64_t d, const numbers *of,
                          const int32_t dtype, const int rows)
{
    for (int64_t c = 0; c < d; c += 32) {
        const vec by = v_load(scale[c / k->codes.group]);
        dwords x[8];
        vec chain[8];
        attn_fetch_soon(k->soon, VL * 32);
        code_columns(x, row, c);
        ATTN_UNROLL for (int r = 0; r < rows; r++) chain[r] = v_set1(0);
        ATTN_UNROLL for (int i = 0; i < 8; i++, q += 4 * STRIP)
        {
            dwords even, odd;
            number_pairs(&even, &odd, x[i], of, dtype);
            ATTN_UNROLL for (int r = 0; r < rows; r++) chain[r] =
                add_pairs(chain[r], even, d_pair(q + 2 * r));
            ATTN_UNROLL for (int r = 0; r < rows; r++) chain[r] =
                add_pairs(chain[r], odd, d_pair(q + 2 * STRIP + 2 * r));
        }
        ATTN_UNROLL for (int r = 0; r < rows; r++) sum[r] =
            c > 0 ? v_fma(chain[r], by, sum[r]) : v_mul(chain[r], by);
    }
}

/* Scores of n keys; false where a scale is not finite. */
ATTN_INLINE bool few_rows(float *s, const attn_rows *k, const uint16_t *q, int64_t d, int64_t n,
                          int lanes, const int32_t dtype)
{
    const numbers of = numbers_of(dtype);
    float scale[MOST_GROUPS][VL];
    for (int64_t key = 0; key < n; key += VL, s += VL * STRIP) {
        const char *row[VL];
        vec sum[8];
        ATTN_UNROLL for (int r = 0; r < 8; r++) sum[r] = v_set1(0);
        if (!few_scales(scale, &k->codes, key, n, d / k->codes.group)) {
            return false;
        }
        for (int i = 0; i < VL; i++) {
            row[i] = (const char *)k->data + (key + i < n ? key + i : n - 1) * k->row_stride;
        }
        if (lanes <= 4) {
            few_keys(sum, row, scale, k, q, d, &of, dtype, 4);
        } else {
            few_keys(sum, row, scale, k, q, d, &of, dtype, 8);
        }
        few_keys_end_f32(s, sum, n - key < VL ? (int)(n - key) : VL, lanes <= 4 ? 4 : 8);
    }
    return true;
}

static bool qk_codes(void *s, const attn_rows *k, const void *qt, int64_t d, int64_t n, int lanes)
{
    if (k->col_stride != 1 || lanes > FEW_f32 || d == 0 || d % 32 != 0 ||
        d / k->codes.group > MOST_GROUPS) {
        return false;
    }
    switch (k->dtype) {
    case ATTN_I8:
        return few_rows(s, k, qt, d, n, lanes, ATTN_I8);
    case ATTN_E4M3:
        return few_rows(s, k, qt, d, n, lanes, ATTN_E4M3);
    default:
        return few_rows(s, k, qt, d, n, lanes, ATTN_E5M2);
    }
}
