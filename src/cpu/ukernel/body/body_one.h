/*
 * body_one.h: the part of body_few.h for one row of Q, as where each head of queries has keys of
 * its own. Chunks of columns of a row of K lie along the lanes where they fill them: the processor
 * follows rows that are read one behind the other. A row's arithmetic takes less time than to count
 * the lines to fetch, so a step fetches a fixed number of them. The order of each sum is that of
 * body.h.
 */
enum {
    FN(WIDE) = VL >= 8 ? 64 / VL : 4, /* vectors of columns of V at a time */
    FN(ORDER) = 8,                    /* keys whose rows of V are read before the next ones */
    FN(TURNS) = 9                     /* most turns through a row of K, of several chunks each */
};

/* Bytes of elements of K or V. */
ATTN_INLINE int64_t FN(bytes_of)(int64_t elements, const int32_t dtype)
{
    return dtype == ATTN_I4X2                         ? elements / 2
           : attn_is_code(dtype)                      ? elements
           : dtype == ATTN_F16 || dtype == ATTN_BF16 ? elements * 2
                                                     : elements * (int64_t)sizeof(real);
}

#ifdef v_join_quads
/* x[i] = column c + i of VL rows, i < 8, from 16 bytes of every fourth row at a time. Pairs of
 * numbers of 16 bits change places before they are widened. */
ATTN_INLINE void FN(by_quads)(vec *x, const char *const *at, int64_t c, const int32_t dtype)
{
    enum { QUAD = 16 }; /* bytes */
    const int each = dtype == FN(OWN) ? 4 : 8;
    vec y[4];
    ATTN_UNROLL for (int i = 0; i < 8; i += each) {
        const int64_t byte = (c + i) / each * QUAD;
        ATTN_UNROLL for (int j = 0; j < 4; j++) y[j] = v_join_quads(at + j, byte);
        FN(shuffle)(y, 4);
        ATTN_UNROLL for (int j = 0; j < 4; j++) {
            if (dtype == FN(OWN)) {
                x[i + j] = y[j];
            } else {
                v_split(x + 2 * j, y[j], dtype);
            }
        }
    }
}
#endif

/* x[i] = column c + i of VL rows, i < RUN. */
ATTN_INLINE void FN(one_run)(vec *x, const char *const *at, int64_t c, const int32_t dtype)
{
#ifdef ONE_BY_QUADS
    if (ONE_BY_QUADS(dtype)) {
        FN(by_quads)(x, at, c, dtype);
        return;
    }
#endif
    FN(columns)(x, at, c, dtype);
}

/* Sums of VL chunks of columns, which begin at `at`. Elements of Q: for each chunk, a vector for
 * each column, or, if `same`, those of QT for all chunks. */
ATTN_INLINE vec FN(one_chunks)(const char *const *at, const real *q, attn_soon *soon,
                               const int32_t dtype, const bool same)
{
    vec sum = v_set1(0);
    ATTN_UNROLL for (int c = 0; c < ATTN_DOT_CHUNK; c += FN(RUN)) {
        vec x[FN(RUN)];
        attn_fetch_lines(soon, (int)(FN(bytes_of)(FN(RUN) * VL, dtype) / 64));
        FN(one_run)(x, at, c, dtype);
        ATTN_UNROLL for (int i = c; i < c + FN(RUN); i++) sum =
            v_fma(x[i - c], same ? v_set1(q[i * STRIP]) : v_load(q + i * VL), sum);
    }
    return sum;
}

/* Computes the scores of the first n of VL / across rows of K, `across` chunks of a row at a time,
 * in so many turns. s[i * apart] = score of row i. */
ATTN_INLINE void FN(one_keys)(real *s, int64_t apart, const char *const *row, int64_t n,
                              const real *q, int64_t turns, attn_soon *soon, const int32_t dtype,
                              const int across)
{
    const int64_t step = (across > 1 ? VL : STRIP) * ATTN_DOT_CHUNK;
    const char *begin[VL];
    real sum[VL], lanes[VL];
    vec sums = v_set1(0);
    ATTN_UNROLL for (int i = 0; i < VL / across; i++) begin[i] = row[i < n ? i : n - 1], sum[i] = 0;
    for (int64_t turn = 0; turn < turns; turn++) {
        const char *at[VL];
        ATTN_UNROLL for (int i = 0; i < VL; i++) at[i] =
            begin[i / across] + FN(bytes_of)(i % across * ATTN_DOT_CHUNK, dtype);
        const vec x = FN(one_chunks)(at, q + turn * step, soon, dtype, across == 1);
        if (across == 1) {
            sums = turn > 0 ? v_add(sums, x) : x;
        } else {
            v_store(lanes, x);
            ATTN_UNROLL for (int i = 0; i < VL; i++) sum[i / across] =
                turn > 0 || i % across > 0 ? sum[i / across] + lanes[i] : lanes[i];
        }
        ATTN_UNROLL for (int i = 0; i < VL / across; i++) begin[i] +=
            FN(bytes_of)(across * ATTN_DOT_CHUNK, dtype);
    }
    if (across == 1) {
        v_store(sum, sums);
    }
    for (int64_t i = 0; i < n; i++) s[i * apart] = sum[i];
}

/* Chunks of a row of K that lie along the lanes, for d columns and n keys. */
ATTN_INLINE int FN(chunks_across)(int64_t d, int64_t n)
{
    const int64_t chunks = d / ATTN_DOT_CHUNK;
    const bool few = n < 2 * VL || chunks > 2 * FN(TURNS); /* keys; turns */
    return few || chunks % 2 != 0 ? 1 : chunks % 8 == 0 ? 8 : chunks % 4 == 0 ? 4 : 2;
}

/* Lays elements of Q side by side for `across` chunks of a row. */
ATTN_INLINE void FN(one_q)(real *q, const real *qt, int64_t d, int across)
{
    for (int64_t c = 0; c < d; c += across * ATTN_DOT_CHUNK) {
        for (int i = 0; i < ATTN_DOT_CHUNK; i++, q += VL) {
            for (int lane = 0; lane < VL; lane++) {
                q[lane] = qt[(c + lane % across * ATTN_DOT_CHUNK + i) * STRIP];
            }
        }
    }
}

/* Computes scores of n rows of K, `across` chunks of a row at a time. Lanes beyond become 0, since
 * the softmax takes them too. */
ATTN_INLINE void FN(one_rows_by)(real *s, const attn_keys *keys, attn_soon *soon,
                                 const int32_t dtype, const int across)
{
    const int rows = VL / across;
    const char *const *row = keys->rows;
    real q[FN(TURNS) * ATTN_DOT_CHUNK * VL];
    if (across > 1) {
        FN(one_q)(q, keys->qt, keys->d, across);
    }
    for (int64_t key = 0; key < keys->n; key++) v_store(s + key * STRIP, v_set1(0));
    for (int64_t n = keys->n; n > 0; n -= rows, row += rows, s += rows * STRIP) {
        FN(one_keys)(s, STRIP, row, n < rows ? n : rows, across > 1 ? q : (const real *)keys->qt,
                     keys->d / (across * ATTN_DOT_CHUNK), soon, dtype, across);
    }
}

/* Computes scores of n rows of K; d is a multiple of chunks. Lines to fetch stay in registers. */
ATTN_INLINE void FN(one_rows)(real *s, const attn_keys *keys, attn_soon *soon, const int32_t dtype)
{
    attn_soon here = {0};
    if (soon) {
        here = *soon;
    }
    switch (FN(chunks_across)(keys->d, keys->n)) {
    case 1: FN(one_rows_by)(s, keys, &here, dtype, 1); break;
    case 2: FN(one_rows_by)(s, keys, &here, dtype, 2); break;
    case 4: FN(one_rows_by)(s, keys, &here, dtype, 4); break;
    default: FN(one_rows_by)(s, keys, &here, dtype, 8);
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
