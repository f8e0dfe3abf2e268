/*
 * codes_few.h: S = K QT from rows of codes where they are, for strips of few lanes; sums are those
 * of codes_scores.h. A vector has 16 bytes of four keys, a quarter each, and so many lanes are
 * chains of them: lane j of a quarter is chain j.
 */
enum { MOST_GROUPS = 16 };

/* ---- scales ---------------------------------------------------------------------------------- */

/* Scales of 16 keys: [key / 4][group / 4][key % 4][group % 4]. */
typedef struct quad_scales {
    float of[4][MOST_GROUPS / 4][VL];
} quad_scales;

/* A quarter for each of four scales from `i` on. */
ATTN_INLINE vec in_quarters(vec scales, int i)
{
    const __m512i first = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(i)), scales);
}

/* Puts scales of keys key .. key+15 one by one; those beyond n - 1 are that of this key. */
static void put_scales(quad_scales *scales, const attn_row_codes *codes, int64_t key, int64_t n,
                       int64_t groups)
{
    for (int64_t i = 0; i < VL; i++) {
        const int64_t row = key + i < n ? key + i : n - 1;
        for (int64_t group = 0; group < groups; group++) {
            scales->of[i / 4][group / 4][i % 4 * 4 + group % 4] = attn_row_scale(codes, row, group);
        }
    }
}

/* True if all scales that are used are finite. */
ATTN_INLINE bool are_finite(const quad_scales *scales, int64_t groups)
{
    vec all = v_set1(0);
    for (int64_t group = 0; group < groups; group += 4) {
        const int64_t some = groups - group;
        const uint16_t used = some > 3 ? 0xffff : (uint16_t)(((1 << some) - 1) * 0x1111);
        for (int quad = 0; quad < 4; quad++) {
            const vec x = _mm512_maskz_loadu_ps(used, scales->of[quad][group / 4]);
            all = v_add(all, v_sub(x, x));
        }
    }
    return v_eq(all, v_set1(0)) == 0xffff;
}

/* Reads scales of keys key .. key+15 below n; false if one is not finite. Scales side by side go
 * through registers: loads of vectors would wait for stores of single ones. */
ATTN_INLINE bool few_scales(quad_scales *scales, const attn_row_codes *codes, int64_t key,
                            int64_t n, int64_t groups)
{
    const bool whole = codes->scale && key + VL <= n && codes->dtype != ATTN_BF16;
    vec x[4], all = v_set1(0);
    if (groups == 1 && (!codes->scale || codes->scale_row == 0)) {
        ATTN_UNROLL for (int i = 0; i < 4; i++) x[i] = v_set1(attn_row_scale(codes, 0, 0));
    } else if (whole && groups == 1 && codes->scale_row == 1) {
        ATTN_UNROLL for (int i = 0; i < 4; i++) x[i] = in_quarters(load_scales(codes, key), 4 * i);
    } else if (whole && groups == 4 && codes->scale_row == 4 && codes->scale_group == 1) {
        ATTN_UNROLL for (int i = 0; i < 4; i++) x[i] = load_scales(codes, 4 * key + VL * i);
    } else {
        put_scales(scales, codes, key, n, groups);
        return are_finite(scales, groups);
    }
    ATTN_UNROLL for (int i = 0; i < 4; i++)
    {
        all = v_add(all, v_sub(x[i], x[i]));
        v_store(scales->of[i][0], x[i]);
    }
    return v_eq(all, v_set1(0)) == 0xffff;
}

/* The scale of a group for each key of a quad. */
ATTN_INLINE vec quad_scale(const quad_scales *scales, int quad, int64_t group)
{
    const __m512i first = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    return _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32((int)(group % 4))),
                                 v_load(scales->of[quad][group / 4]));
}

/* ---- products -------------------------------------------------------------------------------- */

/* Four lanes of sums in quarters: a quarter has the sums of four vectors' lanes there. */
ATTN_INLINE vec sum_quarters(const vec *x)
{
    const vec a = v_add(v_zip_low(x[0], x[1]), v_zip_high(x[0], x[1])),
              b = v_add(v_zip_low(x[2], x[3]), v_zip_high(x[2], x[3]));
    const __m512d c = _mm512_castps_pd(a), e = _mm512_castps_pd(b);
    return v_add(_mm512_castpd_ps(_mm512_unpacklo_pd(c, e)),
                 _mm512_castpd_ps(_mm512_unpackhi_pd(c, e)));
}

/* Bytes c .. c+63 of four rows, as far as below `bytes`: x[i] has bytes 16 i .. of each. */
ATTN_INLINE void load_quads(dwords *x, const char *const *row, int64_t c, int64_t bytes)
{
    dwords y[4], z[4];
    const __mmask64 some = bytes - c < 64 ? ((__mmask64)1 << (bytes - c)) - 1 : ~(__mmask64)0;
    ATTN_UNROLL for (int i = 0; i < 4; i++) y[i] = _mm512_maskz_loadu_epi8(some, row[i] + c);
    z[0] = _mm512_shuffle_i32x4(y[0], y[1], 0x44), z[1] = _mm512_shuffle_i32x4(y[0], y[1], 0xee);
    z[2] = _mm512_shuffle_i32x4(y[2], y[3], 0x44), z[3] = _mm512_shuffle_i32x4(y[2], y[3], 0xee);
    ATTN_UNROLL for (int i = 0; i < 4; i++) x[i] = i % 2
        ? _mm512_shuffle_i32x4(z[i / 2], z[2 + i / 2], 0xdd)
        : _mm512_shuffle_i32x4(z[i / 2], z[2 + i / 2], 0x88);
}

/* Pairs of numbers of 16 bytes of four keys: of 8 bits two vectors, of i4x2 four. */
ATTN_INLINE void quad_numbers(dwords *to, dwords x, const numbers *of, const int32_t dtype)
{
    if (dtype == ATTN_I4X2) {
        const dwords odd = _mm512_srli_epi16(x, 4), low = _mm512_unpacklo_epi16(x, odd),
                     high = _mm512_unpackhi_epi16(x, odd);
        to[0] = nibble_numbers(low, of), to[1] = nibble_numbers(_mm512_srli_epi16(low, 8), of);
        to[2] = nibble_numbers(high, of), to[3] = nibble_numbers(_mm512_srli_epi16(high, 8), of);
    } else {
        dwords low, high;
        number_halves(&low, &high, x, of, dtype);
        to[0] = _mm512_unpacklo_epi8(low, high), to[1] = _mm512_unpackhi_epi8(low, high);
    }
}

/* Chains of eight keys and four lanes. */
typedef struct quad_sums {
    vec chain[2][4], sum[2][4];
} quad_sums;

/* Ends a run of `rows` lanes: its chains, times the scale of a group, join the sums. */
ATTN_INLINE void end_run(quad_sums *x, const quad_scales *scales, int quad, int64_t group,
                         bool first, const int rows)
{
    ATTN_UNROLL for (int j = 0; j < 2; j++)
    {
        const vec by = quad_scale(scales, quad + j, group);
        ATTN_UNROLL for (int r = 0; r < rows; r++)
        {
            x->sum[j][r] = first ? v_mul(x->chain[j][r], by)
                                 : v_fma(x->chain[j][r], by, x->sum[j][r]);
            x->chain[j][r] = v_set1(0);
        }
    }
}

/* Adds the products of 16 bytes of each of eight keys to chains of `rows` lanes. */
ATTN_INLINE void add_quads(quad_sums *x, dwords low, dwords high, const uint16_t *q,
                           const numbers *of, const int32_t dtype, const int rows)
{
    const int vectors = dtype == ATTN_I4X2 ? 4 : 2;
    dwords y[2][4];
    quad_numbers(y[0], low, of, dtype);
    quad_numbers(y[1], high, of, dtype);
    ATTN_UNROLL for (int v = 0; v < vectors; v++)
    {
        ATTN_UNROLL for (int r = 0; r < rows; r++)
        {
            const dwords one = d_load(q + v * Q_STEP + 2 * VL * r);
            ATTN_UNROLL for (int j = 0; j < 2; j++) x->chain[j][r] =
                add_pairs(x->chain[j][r], y[j][v], one);
        }
    }
}

/* Scores of eight keys, from quad `quad` of 16 on, for four lanes, of which `rows` have rows; with
 * `whole` the columns are one run. */
ATTN_INLINE void score_quads(vec *score, const char *const *row, const quad_scales *scales,
                             int quad, const attn_rows *k, const uint16_t *q, int64_t d,
                             const numbers *of, const int32_t dtype, const bool whole,
                             const int rows)
{
    const int each = dtype == ATTN_I4X2 ? 2 : 1; /* columns of a byte */
    const int64_t size = k->codes.group;
    int64_t group = 0, left = size < RUN ? size : RUN, /* of the run */
        rest = size - left;                            /* of the group behind it */
    bool first = true;
    const char *late = row[0] + 64 * (d / each); /* once more, as in pairs/dots_few.h */
    quad_sums x;
    ATTN_UNROLL for (int i = 0; i < 8; i++) x.sum[i / 4][i % 4] = x.chain[i / 4][i % 4] = v_set1(0);
    for (int64_t c = 0; c < d; c += 64 * each, late += 8 * 64) {
        dwords low[4], high[4];
        load_quads(low, row, c / each, d / each);
        load_quads(high, row + 4, c / each, d / each);
        ATTN_UNROLL for (int i = 0; i < 4; i++, q += 2 * each * Q_STEP)
        {
            if (c + 16 * each * i >= d) {
                break;
            }
            if (each == 1) { /* those of 4 bits are too few to be waited for */
                ATTN_PREFETCH(late + 128 * i);
                ATTN_PREFETCH(late + 128 * i + 64);
            }
            if (i % 2 == 0) {
                attn_fetch_soon(k->soon, 8 * 32 * each);
            }
            add_quads(&x, low[i], high[i], q, of, dtype, rows);
            if (!whole && (each == 2 || i % 2 == 1) && (left -= 32) == 0) {
                end_run(&x, scales, quad, group, first, rows);
                if (rest == 0) {
                    group++, rest = size;
                }
                left = rest < RUN ? rest : RUN, rest -= left, first = false;
            }
        }
    }
    if (whole) {
        end_run(&x, scales, quad, 0, true, rows);
    }
    score[0] = sum_quarters(x.sum[0]), score[1] = sum_quarters(x.sum[1]);
}

/* Stores scores of n of four keys for four lanes. */
ATTN_INLINE void store_quad(float *s, vec score, int64_t n)
{
    float quad[4][4];
    if (n >= 4) {
        v_store_quads((float(*)[4])s, STRIP / 4, score);
        return;
    }
    v_store(quad[0], score);
    for (int64_t key = 0; key < n; key++) {
        v_store4(s + key * STRIP, v_load4(quad[key]));
    }
}

/* Scores of n keys; false where a scale is not finite. */
ATTN_INLINE bool few_rows(float *s, const attn_rows *k, const void *qt, int64_t d, int64_t n,
                          int lanes, const int32_t dtype, const int rows)
{
    const numbers of = numbers_of(dtype);
    quad_scales scales;
    for (int64_t key = 0; key < n; key += VL, s += VL * STRIP) {
        const char *row[VL];
        if (!few_scales(&scales, &k->codes, key, n, d / k->codes.group)) {
            return false;
        }
        for (int i = 0; i < VL; i++) {
            row[i] = (const char *)k->data + (key + i < n ? key + i : n - 1) * k->row_stride;
        }
        for (int lane = 0; lane < lanes; lane += 4) {
            const uint16_t *q = q_copy(q_copies(qt, d), d, dtype == ATTN_I4X2, lane);
            for (int i = 0; i < VL && key + i < n; i += 8) {
                vec score[2];
                if (d == k->codes.group && d <= RUN) {
                    score_quads(score, row + i, &scales, i / 4, k, q, d, &of, dtype, true,
                                rows);
                } else {
                    score_quads(score, row + i, &scales, i / 4, k, q, d, &of, dtype, false,
                                rows);
                }
                store_quad(s + i * STRIP + lane, score[0], n - key - i);
                store_quad(s + (i + 4) * STRIP + lane, score[1], n - key - i - 4);
            }
        }
    }
    return true;
}

ATTN_INLINE bool few_or_one(float *s, const attn_rows *k, const void *qt, int64_t d, int64_t n,
                            int lanes, const int32_t dtype)
{
    return lanes == 1 ? few_rows(s, k, qt, d, n, lanes, dtype, 1)
                      : few_rows(s, k, qt, d, n, lanes, dtype, 4);
}

static bool qk_codes(void *s, const attn_rows *k, const void *qt, int64_t d, int64_t n, int lanes)
{
    if (k->col_stride != 1 || lanes > FEW_f32 || d == 0 || d % 32 != 0 ||
        d / k->codes.group > MOST_GROUPS) {
        return false;
    }
    return OF_CODES(k->dtype, few_or_one, s, k, qt, d, n, lanes);
}
