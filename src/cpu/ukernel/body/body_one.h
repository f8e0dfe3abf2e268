/*
 * body_one.h: the part of body_few.h for one row of Q, as where each head of queries has keys of
 * its own. A row alone has one chain of sums for a vector of keys, so chunks of columns are summed
 * side by side. Its arithmetic takes less time than to count the lines to fetch, so a step fetches
 * a fixed number of them. The order of each sum is that of body.h.
 */
enum {
    FN(WIDE) = VL >= 8 ? 64 / VL : 4, /* vectors of columns of V at a time */
    FN(ORDER) = 8                     /* keys whose rows of V are read before the next ones */
};

/* Bytes of elements of K or V. */
ATTN_INLINE int64_t FN(bytes_of)(int64_t elements, const int32_t dtype)
{
    return dtype == ATTN_I4X2                         ? elements / 2
           : attn_is_code(dtype)                      ? elements
           : dtype == ATTN_F16 || dtype == ATTN_BF16 ? elements * 2
                                                     : elements * (int64_t)sizeof(real);
}

/* x[i] = column c + i of VL rows, i < RUN: columns() with fewer steps where rows of 16 bytes can be
 * joined. Pairs of bf16 numbers change places before they are widened. */
ATTN_INLINE void FN(one_run)(vec *x, const char *const *at, int64_t c, const int32_t dtype)
{
#if REAL_BITS == 32 && defined v_join_quads
    enum { QUAD = 16 }; /* bytes */
    if (dtype != ATTN_F16) {
        const int each = dtype == ATTN_BF16 ? 8 : 4;
        vec y[4];
        ATTN_UNROLL for (int i = 0; i < 8; i += each) {
            const int64_t byte = (c + i) / each * QUAD;
            ATTN_UNROLL for (int j = 0; j < 4; j++) y[j] =
                v_join_quads(at[j] + byte, at[j + 4] + byte);
            FN(shuffle)(y, 4);
            ATTN_UNROLL for (int j = 0; j < 4; j++) {
                if (dtype == ATTN_BF16) {
                    x[2 * j] = v_even_bf16(y[j]), x[2 * j + 1] = v_odd_bf16(y[j]);
                } else {
                    x[i + j] = y[j];
                }
            }
        }
        return;
    }
#endif
    FN(columns)(x, at, c, dtype);
}

/* Adds the products of `count` chunks of n columns of VL rows, from column c on, to a sum. */
ATTN_INLINE vec FN(one_chunks)(vec sum, const char *const *at, int64_t c, int64_t n,
                               const real *qt, attn_soon *soon, const int32_t dtype,
                               const int count)
{
    vec chunk[4];
    ATTN_UNROLL for (int k = 0; k < count; k++) chunk[k] = v_set1(0);
    for (int64_t i = 0; i < n; i += FN(RUN)) {
        ATTN_UNROLL for (int k = 0; k < count; k++) {
            const int64_t first = c + k * ATTN_DOT_CHUNK + i;
            vec x[FN(RUN)];
            attn_fetch_lines(soon, (int)(FN(bytes_of)(FN(RUN) * VL, dtype) / 64));
            FN(one_run)(x, at, first, dtype);
            ATTN_UNROLL for (int j = 0; j < FN(RUN); j++) chunk[k] =
                v_fma(x[j], v_set1(qt[(first + j) * STRIP]), chunk[k]);
        }
    }
    sum = c > 0 ? v_add(sum, chunk[0]) : chunk[0];
    ATTN_UNROLL for (int k = 1; k < count; k++) sum = v_add(sum, chunk[k]);
    return sum;
}

/* Computes the scores of the first n <= VL of the rows of K at `row`; d is a multiple of VL. */
ATTN_INLINE void FN(one_keys)(real *s, const char *const *row, int64_t n, const real *qt, int64_t d,
                              attn_soon *soon, const int32_t dtype)
{
    const int64_t chunk = ATTN_DOT_CHUNK;
    const char *at[VL];
    vec sum[4] = {v_set1(0), v_set1(0), v_set1(0), v_set1(0)}; /* of rows */
    int64_t c = 0;
    for (int i = 0; i < VL; i++) {
        at[i] = row[i < n ? i : n - 1];
    }
    for (; c + 4 * chunk <= d; c += 4 * chunk) {
        sum[0] = FN(one_chunks)(sum[0], at, c, chunk, qt, soon, dtype, 4);
    }
    for (; c + 2 * chunk <= d; c += 2 * chunk) {
        sum[0] = FN(one_chunks)(sum[0], at, c, chunk, qt, soon, dtype, 2);
    }
    for (; c < d; c += chunk) {
        sum[0] = FN(one_chunks)(sum[0], at, c, d - c < chunk ? d - c : chunk, qt, soon, dtype, 1);
    }
    FN(few_keys_end)(s, sum, (int)(n < VL ? n : VL), 1);
}

/* Computes scores of n rows of K. What is to be fetched stays in registers meanwhile. */
ATTN_INLINE void FN(one_rows)(real *s, const attn_keys *keys, attn_soon *soon, const int32_t dtype)
{
    const char *const *row = keys->rows;
    attn_soon here = {0};
    if (soon) {
        here = *soon;
    }
    for (int64_t n = keys->n; n > 0; n -= VL, row += VL, s += VL * STRIP) {
        FN(one_keys)(s, row, n, keys->qt, keys->d, &here, dtype);
    }
    if (soon) {
        *soon = here;
    }
}

/* ---- V^T P ----------------------------------------------------------------------------------- */

/* Adds the products of keys `key` .. end-1 to `width` vectors of columns, from column c on. */
ATTN_INLINE void FN(one_columns)(vec *to, const attn_values *v, int64_t c, const real *p,
                                 int64_t key, int64_t end, attn_soon *soon, const int32_t dtype,
                                 const int width)
{
    const real *panel = (const real *)v->v + v->at * v->dv_pad;
    const bool codes = attn_is_code(dtype);
    int64_t factor[FN(WIDE)];
    vec sum[FN(WIDE)];
    ATTN_UNROLL for (int i = 0; i < width; i++) {
        factor[i] = codes ? (c + i * VL) / v->group : 0, sum[i] = to[i];
    }
    for (; key < end; key++) {
        const char *row = dtype ? v->rows[key] : (const char *)(panel + key * v->dv_pad);
        const vec one = v_set1(p[key * STRIP]);
        row += FN(bytes_of)(c, dtype); /* once: gcc keeps places of all vectors otherwise */
        if (codes) {
            attn_fetch_soon(soon, width * VL);
        } else {
            attn_fetch_lines(soon, (int)(FN(bytes_of)(width * VL, dtype) + 63) / 64);
        }
        ATTN_UNROLL for (int i = 0; i < width; i++) {
            vec y = FN(load_row)(row, i * VL, dtype ? dtype : FN(OWN));
            if (codes) {
                y = FN(code_values)(y, v, factor[i] + key * v->groups);
            }
            sum[i] = v_fma(y, one, sum[i]);
        }
    }
    ATTN_UNROLL for (int i = 0; i < width; i++) to[i] = sum[i];
}

/* Computes `parts` times `width` vectors of columns of OT, from column c on. */
ATTN_INLINE void FN(one_parts)(real *ot, const attn_values *v, int64_t c, const real *p, int64_t n,
                               const real *alpha, attn_soon *soon, const int32_t dtype,
                               const int parts, const int width)
{
    vec sum[2 * FN(WIDE)];
    ATTN_UNROLL for (int i = 0; i < parts * width; i++) sum[i] = v_set1(0);
    for (int64_t key = 0; key < n; key += FN(ORDER)) {
        const int64_t end = n - key < FN(ORDER) ? n : key + FN(ORDER);
        ATTN_UNROLL for (int i = 0; i < parts * width; i += width)
            FN(one_columns)(sum + i, v, c + i * VL, p, key, end, soon, dtype, width);
    }
    for (int i = 0; i < parts * width; i++) {
        const vec rows[4] = {sum[i], v_set1(0), v_set1(0), v_set1(0)};
        FN(few_columns_end)(ot + (c + i * VL) * STRIP, rows, alpha, 1);
    }
}

/* Computes whole vectors of columns. Returns the number of these columns. */
ATTN_INLINE int64_t FN(one_pv)(real *ot, const attn_values *v, const real *p, int64_t n,
                               const real *alpha, const int32_t dtype)
{
    enum { MANY = FN(WIDE) * VL };
    attn_soon soon = {0};
    int64_t c = 0;
    if (v->soon) {
        soon = *v->soon;
    }
    for (; c + 2 * MANY <= v->dv_pad; c += 2 * MANY) {
        FN(one_parts)(ot, v, c, p, n, alpha, &soon, dtype, 2, FN(WIDE));
    }
    for (; c + MANY <= v->dv_pad; c += MANY) {
        FN(one_parts)(ot, v, c, p, n, alpha, &soon, dtype, 1, FN(WIDE));
    }
    for (; c + 2 * VL <= v->dv_pad; c += 2 * VL) {
        FN(one_parts)(ot, v, c, p, n, alpha, &soon, dtype, 1, 2);
    }
    for (; c + VL <= v->dv_pad; c += VL) {
        FN(one_parts)(ot, v, c, p, n, alpha, &soon, dtype, 1, 1);
    }
    return c;
}
