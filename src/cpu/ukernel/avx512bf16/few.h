/*
 * few.h: products of strips of few rows, as in a step of decoding: keys along the lanes in K QT,
 * columns in V^T P, a vector of sums for each row of Q. Each sum is the same as in products.h,
 * which includes this file.
 */

enum { FEW_LANES = 8 };

/* Scores of 16 keys with `rows` lanes. */
ATTN_INLINE void few_keys(float *s, const uint16_t *k, const factors *f, const int rows)
{
    float scores[FEW_LANES][GROUP];
    vec sum[FEW_LANES];
    ATTN_UNROLL for (int r = 0; r < rows; r++) sum[r] = v_set1(0);
    for (int64_t step = 0; step < f->steps; step++, k += f->a_step) {
        uint32_t columns[GROUP * GROUP] __attribute__((aligned(64)));
        const uint16_t *q = f->b + step * f->b_step;
        __m512i x[GROUP];
        vec chunk[FEW_LANES];
        for (int key = 0; key < GROUP; key++) {
            x[key] = _mm512_loadu_si512(k + key * f->a_stride / 2);
        }
        transpose16(columns, GROUP, x);
        ATTN_UNROLL for (int r = 0; r < rows; r++) chunk[r] = v_set1(0);
        for (int pair = 0; pair < GROUP; pair++, q += f->b_stride / 2) {
            const __m512i y = _mm512_loadu_si512(columns + pair * GROUP);
            ATTN_UNROLL for (int r = 0; r < rows; r++) chunk[r] =
                add_pairs(chunk[r], y, broadcast_pair(q + 2 * r));
        }
        ATTN_UNROLL for (int r = 0; r < rows; r++) sum[r] =
            step > 0 ? v_add(sum[r], chunk[r]) : chunk[r];
    }
    ATTN_UNROLL for (int r = 0; r < rows; r++) v_store(scores[r], sum[r]);
    for (int key = 0; key < GROUP; key++, s += STRIP) {
        v_store(s, v_set1(0)); /* lanes that nobody reads, but the softmax takes */
        ATTN_UNROLL for (int r = 0; r < rows; r++) s[r] = scores[r][key];
    }
}

ATTN_INLINE void few_scores(float *s, const factors *f, int64_t n, int lanes)
{
    const uint16_t *k = f->a;
    for (int64_t key = 0; key < n; key += GROUP, k += f->a_rows) {
        if (f->soon) {
            attn_fetch_soon(f->soon, 4 * f->soon->each);
        }
        if (lanes <= FEW_LANES / 2) {
            few_keys(s + key * STRIP, k, f, FEW_LANES / 2);
        } else {
            few_keys(s + key * STRIP, k, f, FEW_LANES);
        }
    }
}

/* `width` vectors of columns of OT for `rows` lanes, of which `lanes` are stored. v: dwords of two
 * keys, 2 dv_pad elements from pair to pair. */
ATTN_INLINE void few_columns(float *ot, const uint16_t *v, const uint16_t *p, int64_t dv_pad,
                             int64_t pairs, const float *alpha, int lanes, const int rows,
                             const int width)
{
    float sums[FEW_LANES][4 * VL];
    vec sum[FEW_LANES][4];
    ATTN_UNROLL for (int r = 0; r < rows; r++) {
        ATTN_UNROLL for (int i = 0; i < width; i++) sum[r][i] = v_set1(0);
    }
    for (int64_t pair = 0; pair < pairs; pair++, v += 2 * dv_pad, p += 2 * STRIP) {
        __m512i x[4];
        ATTN_UNROLL for (int i = 0; i < width; i++) x[i] = _mm512_loadu_si512(v + i * STRIP);
        ATTN_UNROLL for (int r = 0; r < rows; r++)
        {
            const __m512i one = broadcast_pair(p + 2 * r);
            ATTN_UNROLL for (int i = 0; i < width; i++) sum[r][i] =
                add_pairs(sum[r][i], x[i], one);
        }
    }
    ATTN_UNROLL for (int r = 0; r < rows; r++) {
        ATTN_UNROLL for (int i = 0; i < width; i++) v_store(sums[r] + i * VL, sum[r][i]);
    }
    for (int c = 0; c < width * VL; c++, ot += STRIP) {
        for (int r = 0; r < lanes; r++) {
            ot[r] = alpha ? fmaf(ot[r], alpha[r], sums[r][c]) : sums[r][c];
        }
    }
}

static void pv_few(void *ot_, const void *v_, int64_t at, const void *p, int64_t dv_pad, int64_t n,
                   const void *alpha, int lanes)
{
    const uint16_t *v = (const uint16_t *)v_ + at * dv_pad;
    const int64_t pairs = pad32(n) / 2;
    float *ot = ot_;
    int64_t c = 0;
    for (; c + 4 * VL <= dv_pad && lanes <= 4; c += 4 * VL) {
        few_columns(ot + c * STRIP, v + 2 * c, p, dv_pad, pairs, alpha, lanes, 4, 4);
    }
    for (; c < dv_pad; c += 2 * VL) {
        few_columns(ot + c * STRIP, v + 2 * c, p, dv_pad, pairs, alpha, lanes, FEW_LANES, 2);
    }
}
