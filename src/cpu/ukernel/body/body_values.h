/*
 * body_values.h: V^T P as rows of O: columns along the lanes, so that O needs no transposition. A
 * part of body.h and of pairs/dots.h. Vector headers that define COLUMNS, the most vectors of
 * columns at a time, and COLUMN_SUMS, the sums that registers hold, take part. Tables whose panel
 * of V is not rows define before it VALUES_AT, the panel's place of a key, and row_products.
 */
#if defined COLUMNS

#ifndef VALUES_AT
#define VALUES_AT(v, at, dv) ((const real *)(v) + (at) * (dv))

/* sum[r cols + i] = V^T P of n keys, row r of P, columns c + i VL .. of V, in the order of pv. */
ATTN_INLINE void FN(row_products)(vec *sum, const void *v_, int64_t c, int64_t dv, const void *p_,
                                  int64_t n, const int rows, const int cols)
{
    const real *v = (const real *)v_ + c, *p = p_;
    ATTN_UNROLL for (int i = 0; i < rows * cols; i++) sum[i] = v_set1(0);
    ATTN_UNROLL_4 for (int64_t key = 0; key < n; key++, v += dv, p += STRIP) {
        vec x[COLUMNS];
        ATTN_UNROLL for (int i = 0; i < cols; i++) x[i] = v_load(v + i * VL);
        ATTN_UNROLL for (int r = 0; r < rows; r++) {
            const vec one = v_set1(p[r]);
            ATTN_UNROLL for (int i = 0; i < cols; i++) sum[r * cols + i] =
                v_fma(x[i], one, sum[r * cols + i]);
        }
    }
}
#endif

/* Vectors of columns of the next group. A single one alone would have too few sums to be fast.
 * Three of 512 bits leave registers for eight rows, so V is read half as often as with four. */
ATTN_INLINE int64_t FN(group_columns)(int64_t left)
{
    return left <= COLUMNS ? left : left == COLUMNS + 1 ? COLUMNS - 1 : 3;
}

/* Adds `rows` lanes of the sums so far to those of the keys at hand. */
ATTN_INLINE void FN(add_sums)(const attn_row_sums *to, vec *sum, int lane, int64_t c,
                              const int rows, const int cols)
{
    ATTN_UNROLL for (int r = 0; r < rows; r++) {
        const real *old = (const real *)to->sum + (lane + r) * to->dv + c;
        const vec alpha = v_set1(((const real *)to->alpha)[lane + r]);
        ATTN_UNROLL for (int i = 0; i < cols; i++) sum[r * cols + i] =
            v_fma(v_load(old + i * VL), alpha, sum[r * cols + i]);
    }
}

ATTN_INLINE void FN(keep_sums)(const attn_row_sums *to, const vec *sum, int lane, int64_t c,
                               const int rows, const int cols)
{
    ATTN_UNROLL for (int r = 0; r < rows; r++) {
        real *row = (real *)to->sum + (lane + r) * to->dv + c;
        ATTN_UNROLL for (int i = 0; i < cols; i++) v_store(row + i * VL, sum[r * cols + i]);
    }
}

ATTN_INLINE void FN(narrow_vectors)(void *to, int32_t dtype, const vec *x, const int cols)
{
    real tile[COLUMNS * VL];
    ATTN_UNROLL for (int i = 0; i < cols; i++) v_store(tile + i * VL, x[i]);
    FN(narrow)(to, 1, dtype, tile, cols * VL);
}

/* Stores the quotients of a row from column c on. */
ATTN_INLINE void FN(quotients_out)(const attn_row_sums *to, const vec *sum, real inverse_, int lane,
                                   int64_t c, const int cols, const bool quick)
{
    const vec by = v_set1(((const real *)to->divisor)[lane]), inverse = v_set1(inverse_);
    const bool own = FN(in_place)(1, to->o_dtype, VL);
    char *at = (char *)to->o[lane] + c * attn_element_size(to->o_dtype);
    vec y[COLUMNS];
    (void)inverse;
    ATTN_UNROLL for (int i = 0; i < cols; i++) {
        const vec x = quick ? v_quotient(sum[i], by, inverse) : FN(divide)(sum[i], by);
        y[i] = v_add(x, v_set1(0)); /* as in store */
    }
    if (own) {
        ATTN_UNROLL for (int i = 0; i < cols; i++) v_store((real *)(void *)at + i * VL, y[i]);
    } else if (quick && to->o_dtype == ATTN_BF16) {
        ATTN_UNROLL for (int i = 0; i < cols; i++) v_store_bf16((uint16_t *)(void *)at + i * VL,
                                                                y[i]);
    } else {
        FN(narrow_vectors)(at, to->o_dtype, y, cols);
    }
}

/* `cols` vectors of columns from c on, of all lanes. False if a quotient is not quick; without
 * `inverse` sums are kept. */
ATTN_INLINE bool FN(column_rows)(const attn_row_sums *to, const real *inverse, const void *v,
                                 const void *p, int64_t c, int64_t n, int lanes, const int cols)
{
    const int most = COLUMN_SUMS / cols,
              rows = most >= 8 ? 8 : most >= 6 && STRIP % 6 == 0 ? 6 : 4;
    for (int lane = 0; lane < lanes; lane += rows) {
        vec sum[COLUMN_SUMS];
        FN(row_products)(sum, v, c, to->dv, (const real *)p + lane, n, rows, cols);
        if (to->alpha) {
            FN(add_sums)(to, sum, lane, c, rows, cols);
        }
        ATTN_UNROLL for (int i = 0; i < rows * cols; i++) {
            sum[i] = i < (lanes - lane) * cols ? sum[i] : v_set1(0); /* rows beyond hold anything */
        }
        if (!inverse) {
            FN(keep_sums)(to, sum, lane, c, rows, cols);
        } else if (!v_can_quotients(sum, rows * cols)) {
            return false;
        } else {
            ATTN_UNROLL for (int r = 0; r < rows; r++) {
                if (r < lanes - lane) {
                    FN(quotients_out)(to, sum + r * cols, inverse[lane + r], lane + r, c, cols,
                                      true);
                }
            }
        }
    }
    return true;
}

#define COLUMN_CASE(cols)                                                      \
    case cols:                                                                 \
        done = FN(column_rows)(to, inverse, v, p, c, keys, lanes, cols); \
        break;
static bool FN(all_columns)(const attn_row_sums *to, const real *inverse, const void *v,
                            const void *p, int64_t keys, int lanes)
{
    bool done = true;
    for (int64_t c = 0, cols; done && c < to->dv; c += cols * VL) {
        cols = FN(group_columns)((to->dv - c) / VL);
        switch (cols) {
            COLUMN_CASE(1)
            COLUMN_CASE(2)
            COLUMN_CASE(3)
#if COLUMNS > 3
            COLUMN_CASE(4)
#endif
        }
    }
    return done;
}
#undef COLUMN_CASE

static bool FN(pv_rows)(const attn_row_sums *to, const void *v, int64_t at, const void *p,
                        int64_t n, int lanes)
{
    const void *from = VALUES_AT(v, at, to->dv);
    real inverse[STRIP];
    if (to->o && FN(inverses)(inverse, to->divisor, lanes) &&
        FN(all_columns)(to, inverse, from, p, n, lanes)) {
        return true;
    }
    FN(all_columns)(to, NULL, from, p, n, lanes);
    return false;
}

static bool FN(end_rows)(const attn_row_sums *to, int lanes)
{
    real of[VL], any = 0;
    vec bad = v_set1(0);
    for (int lane = 0; lane < lanes; lane++) {
        const real *row = (const real *)to->sum + lane * to->dv;
        for (int64_t c = 0; c < to->dv; c += VL) {
            const vec sum = v_load(row + c);
            bad = v_fma(sum, v_set1(0), bad);
            FN(quotients_out)(to, &sum, 1, lane, c, 1, false);
        }
    }
    v_store(of, bad);
    for (int i = 0; i < VL; i++) {
        any += of[i];
    }
    return any == any;
}
#define VALUE_ROWS .row_columns = VL, .pv_rows = FN(pv_rows), .end_rows = FN(end_rows)
#else
#define VALUE_ROWS .row_columns = 0
#endif
