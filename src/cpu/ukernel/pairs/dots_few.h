/*
 * dots_few.h: products of strips of few rows, as in a step of decoding: keys along the lanes in K
 * QT, columns in V^T P, a vector of sums for each row of Q. Each sum is the same as in dots.h,
 * which includes this file.
 */

/* Scores of 16 keys with `rows` lanes. */
ATTN_INLINE void few_keys(float *s, const uint16_t *k, const factors *f, const int rows)
{
    float scores[FEW_LANES][GROUP];
    vec sum[FEW_LANES];
    ATTN_UNROLL for (int r = 0; r < rows; r++) sum[r] = v_set1(0);
    for (int64_t step = 0; step < f->steps; step++, k += f->a_step) {
        uint32_t columns[GROUP * GROUP] __attribute__((aligned(64)));
        const uint16_t *q = f->b + step * f->b_step;
        attn_fetch_soon(f->soon, f->elements);
        dwords x[GROUP];
        vec chunk[FEW_LANES];
        for (int key = 0; key < GROUP; key++) {
            x[key] = d_load(k + key * f->a_stride / 2);
        }
        transpose16(columns, GROUP, x);
        ATTN_UNROLL for (int r = 0; r < rows; r++) chunk[r] = v_set1(0);
        for (int pair = 0; pair < GROUP; pair++, q += f->b_stride / 2) {
            const dwords y = d_load(columns + pair * GROUP);
            ATTN_UNROLL for (int r = 0; r < rows; r++) chunk[r] =
                add_pairs(chunk[r], y, d_pair(q + 2 * r));
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
        if (lanes <= FEW_LANES / 2) {
            few_keys(s + key * STRIP, k, f, FEW_LANES / 2);
        } else {
            few_keys(s + key * STRIP, k, f, FEW_LANES);
        }
    }
}

/* Adds the products of a square, two vectors of columns, to the sums of `rows` lanes. */
ATTN_INLINE void add_square(vec (*sum)[2], const uint16_t *v, const uint16_t *p, const int rows)
{
    for (int pair = 0; pair < GROUP; pair++, v += 2 * STRIP, p += 2 * STRIP) {
        const dwords low = d_load(v), high = d_load(v + STRIP);
        ATTN_UNROLL for (int r = 0; r < rows; r++)
        {
            const dwords one = d_pair(p + 2 * r);
            sum[r][0] = add_pairs(sum[r][0], low, one);
            sum[r][1] = add_pairs(sum[r][1], high, one);
        }
    }
}

/* 32 columns of OT from c on for `rows` lanes, of which `lanes` are stored. */
ATTN_INLINE void few_columns(float *ot, const attn_values *v, int64_t c, const uint16_t *p,
                             int64_t n, const float *alpha, int lanes, const int rows)
{
    float sums[FEW_LANES][2][VL];
    vec sum[FEW_LANES][2];
    ATTN_UNROLL for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = v_set1(0);
    for (int64_t key = 0; key < n; key += KEY_STEP) {
        uint16_t square[SQUARE] __attribute__((aligned(64)));
        pack_square(square, v->rows + key, v->count - key, c, v->dv, v->soon);
        add_square(sum, square, p + key * STRIP, rows);
    }
    ATTN_UNROLL for (int r = 0; r < rows; r++)
    {
        v_store(sums[r][0], sum[r][0]);
        v_store(sums[r][1], sum[r][1]);
    }
    for (int i = 0; i < 2 * VL; i++) {
        float *to = ot + (c + PAIR_LOW(i % VL) + i / VL * PAIR_HIGH) * STRIP;
        for (int r = 0; r < lanes; r++) {
            const float x = sums[r][i / VL][i % VL];
            to[r] = alpha ? fmaf(to[r], alpha[r], x) : x;
        }
    }
}

static void pv_few(void *ot, const attn_values *v, const void *p, int64_t n, const void *alpha,
                   int lanes)
{
    for (int64_t c = 0; c < v->dv_pad; c += 2 * VL) {
        if (lanes <= FEW_LANES / 2) {
            few_columns(ot, v, c, p, n, alpha, lanes, FEW_LANES / 2);
        } else {
            few_columns(ot, v, c, p, n, alpha, lanes, FEW_LANES);
        }
    }
}
