/*
 * dots_few.h: products of strips of few rows, as in a step of decoding: keys along the lanes in K
 * QT, columns in V^T P, a vector of sums for each row of Q. Each sum is the same as in dots.h,
 * which includes this file.
 */

/* Adds the products of 32 columns of 16 keys, `apart` numbers from each to the next, to chains of
 * `rows` lanes. A line behind `late` and a share of the lines that are due stand between pairs of
 * columns: a burst would wait for the lines before it, and the products with it. */
ATTN_INLINE void few_step(vec *chain, const uint16_t *k, int64_t apart, const uint16_t *q,
                          const factors *f, const char *late, const int rows)
{
    ATTN_UNROLL for (int r = 0; r < rows; r++) chain[r] = v_set1(0);
    ATTN_UNROLL for (int half = 0; half < 2; half++, k += GROUP, q += GROUP * STRIP)
    {
        dwords x[GROUP / 2];
        d_columns(x, k, apart);
        ATTN_UNROLL for (int pair = 0; pair < GROUP / 2; pair++, late += 64)
        {
            if (pair % (GROUP / 4) == 0) {
                attn_fetch_soon(f->soon, f->elements / 4);
            }
            ATTN_PREFETCH(late);
            ATTN_UNROLL for (int r = 0; r < rows; r++) chain[r] =
                add_pairs(chain[r], x[pair], d_pair(q + pair * 2 * STRIP + 2 * r));
        }
    }
}

/* Scores of 16 keys with `rows` lanes. Lines of rows two tiles on are fetched once more, in their
 * order: the processor left out those that found no buffer free. Rows that are not side by side
 * have lines of others there, which does no harm. */
ATTN_INLINE void few_keys(float *s, const uint16_t *k, const factors *f, const int rows)
{
    vec sum[FEW_LANES];
    ATTN_UNROLL for (int r = 0; r < FEW_LANES; r++) sum[r] = v_set1(0); /* ends take four lanes */
    const char *late = (const char *)(k + 2 * GROUP * f->a_stride / 2);
    for (int64_t step = 0; step < f->steps; step++, k += f->a_step, late += 64 * GROUP) {
        const uint16_t *q = f->b + step * f->b_step;
        vec chain[FEW_LANES];
        if (step + 1 < f->steps || f->last == GROUP) {
            few_step(chain, k, f->a_stride / 2, q, f, late, rows);
        } else { /* the next row's numbers would be multiplied by 0 */
            uint16_t part[GROUP][2 * GROUP];
            for (int key = 0; key < GROUP; key++) {
                d_store(part[key], d_load_some(k + key * f->a_stride / 2, 2 * f->last));
            }
            few_step(chain, part[0], 2 * GROUP, q, f, late, rows);
        }
        ATTN_UNROLL for (int r = 0; r < rows; r++) sum[r] =
            step > 0 ? v_add(sum[r], chain[r]) : chain[r];
    }
    few_keys_end_f32(s, sum, GROUP, rows);
}

/* Scores of a key, lanes along the vectors; lanes beyond four become 0 if `four`. With `own` the
 * numbers at k are a key for each lane, which lie as QT does. */
ATTN_INLINE void one_key(float *s, const uint16_t *k, const factors *f, const bool four,
                         const bool own)
{
    vec sum = v_set1(0);
    for (int64_t step = 0; step < f->steps; step++, k += own ? f->b_step : f->a_step) {
        const uint16_t *q = f->b + step * f->b_step;
        const int64_t pairs = step + 1 < f->steps ? GROUP : f->last;
        vec chain = v_set1(0);
        for (int64_t pair = 0; pair < pairs; pair++) {
            const uint16_t *of = q + pair * 2 * STRIP, *at = k + pair * 2 * (own ? STRIP : 1);
            const dwords x = !own ? d_pair(at) : four ? d_load4(at) : d_load(at);
            chain = add_pairs(chain, x, four ? d_load4(of) : d_load(of));
        }
        sum = step > 0 ? v_add(sum, chain) : chain;
    }
    v_store(s, sum);
}

ATTN_INLINE void few_scores(float *s, const factors *f, int64_t n, int lanes)
{
    enum { ALONE = 2 }; /* most keys that are faster one by one */
    const uint16_t *k = f->a;
    if (n <= ALONE) {
        for (int64_t key = 0; key < n; key++, s += STRIP, k += f->a_stride / 2) {
            if (lanes <= 4) {
                one_key(s, k, f, true, false);
            } else {
                one_key(s, k, f, false, false);
            }
        }
        return;
    }
    for (int64_t key = 0; key < n; key += GROUP, k += f->a_rows) {
        if (lanes <= FEW_LANES / 2) {
            few_keys(s + key * STRIP, k, f, FEW_LANES / 2);
        } else {
            few_keys(s + key * STRIP, k, f, FEW_LANES);
        }
    }
}

/* Adds the products of two keys with `width` times 32 columns to the sums of `rows` lanes. */
ATTN_INLINE void add_two_keys(vec (*sum)[FEW_LANES], const dwords *x, const dwords *y,
                              const uint16_t *p, const int rows, const int width)
{
    ATTN_UNROLL for (int i = 0; i < width; i++)
    {
        dwords low, high;
        pair_columns(&low, &high, x[i], y[i]);
        ATTN_UNROLL for (int r = 0; r < rows; r++)
        {
            const dwords one = d_pair(p + 2 * r);
            sum[2 * i][r] = add_pairs(sum[2 * i][r], low, one);
            sum[2 * i + 1][r] = add_pairs(sum[2 * i + 1][r], high, one);
        }
    }
}

/* Columns from c on of the row of a key below v->count, or zeros. */
ATTN_INLINE dwords few_value(const attn_values *v, int64_t key, int64_t c)
{
    dwords x[PARTS];
    split_row(x, key < v->count ? v->rows[key] : NULL, 1, c, v->dv, 1);
    return x[0];
}

/* Columns PAIR_LOW(i), as far as below n, of OT = OT alpha + the sums of column i, a vector for
 * each of four lanes; without alpha (NULL) these sums. */
ATTN_INLINE void few_columns_end(float *ot, int64_t n, const float *alpha, const vec *sum)
{
    float column[VL][4];
    quads_f32(column, 1, sum);
    ATTN_UNROLL for (int i = 0; i < VL; i++)
    {
        float *to = ot + PAIR_LOW(i) * STRIP;
        const vec x = v_load4(column[i]);
        if (PAIR_LOW(i) < n) {
            v_store4(to, alpha ? v_fma(v_load4(to), v_load4(alpha), x) : x);
        }
    }
}

/* `width` times 32 columns of OT from c on for `rows` lanes. */
ATTN_INLINE void few_columns(float *ot, const attn_values *v, int64_t c, const uint16_t *p,
                             int64_t n, const float *alpha, const int rows, const int width)
{
    vec sum[4][FEW_LANES];
    const int64_t whole = c + 32 * width <= v->dv ? v->count & ~(int64_t)1 : 0;
    ATTN_UNROLL for (int r = 0; r < FEW_LANES; r++)
    {
        ATTN_UNROLL for (int i = 0; i < 2 * width; i++) sum[i][r] = v_set1(0);
    }
    for (int64_t key = 0; key < n; key += 2, p += 2 * STRIP) {
        dwords x[2], y[2];
        attn_fetch_soon(v->soon, 128 * width);
        if (key < whole) {
            const uint16_t *a = (const uint16_t *)(const void *)v->rows[key] + c,
                           *b = (const uint16_t *)(const void *)v->rows[key + 1] + c;
            ATTN_UNROLL for (int i = 0; i < width; i++) x[i] = d_load(a + 32 * i);
            ATTN_UNROLL for (int i = 0; i < width; i++) y[i] = d_load(b + 32 * i);
        } else {
            ATTN_UNROLL for (int i = 0; i < width; i++)
            {
                x[i] = few_value(v, key, c + 32 * i);
                y[i] = few_value(v, key + 1, c + 32 * i);
            }
        }
        add_two_keys(sum, x, y, p, rows, width);
    }
    ATTN_UNROLL for (int i = 0; i < 2 * width; i++)
    {
        const int64_t first = c + i / 2 * 32 + i % 2 * PAIR_HIGH;
        ATTN_UNROLL for (int r = 0; r < rows; r += 4) few_columns_end(
            ot + first * STRIP + r, v->dv_pad - first, alpha ? alpha + r : NULL, sum[i] + r);
    }
}

static void pv_few(void *ot, const attn_values *v, const void *p, int64_t n, const void *alpha,
                   int lanes)
{
    int64_t c = 0;
    for (; lanes <= FEW_LANES / 2 && c + 64 <= v->dv_pad; c += 64) {
        few_columns(ot, v, c, p, n, alpha, FEW_LANES / 2, 2);
    }
    for (; c < v->dv_pad; c += 32) {
        if (lanes <= FEW_LANES / 2) {
            few_columns(ot, v, c, p, n, alpha, FEW_LANES / 2, 1);
        } else {
            few_columns(ot, v, c, p, n, alpha, FEW_LANES, 1);
        }
    }
}
