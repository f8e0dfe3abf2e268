/*
 * body_few.h: the part of body.h for products with few lanes, as in a step of decoding: keys along
 * the lanes in K QT, columns in V^T P, a vector of sums for each row of Q: of one row (body_one.h),
 * of up to four, or of eight. The order of each sum is that of body.h. Lanes are moved by fours;
 * sums that have no row are 0.
 */
enum { FN(OWN) = REAL_BITS == 32 ? ATTN_F32 : ATTN_F64 };

/* `rows` rounded up to fours. */
ATTN_INLINE int FN(fours)(const int rows)
{
    return (rows + 3) / 4 * 4;
}

/* Loads elements from column c of a row on as numbers. */
ATTN_INLINE vec FN(load_row)(const char *row, int64_t c, const int32_t dtype)
{
#if REAL_BITS == 32 && defined v_load_i8
    if (attn_is_code(dtype)) {
        return FN(load_codes)(row, c, dtype);
    }
    if (dtype == ATTN_F16 || dtype == ATTN_BF16) {
        const uint16_t *at = (const uint16_t *)(const void *)row + c;
        return dtype == ATTN_F16 ? v_load_f16(at) : v_load_bf16(at);
    }
#endif
    (void)dtype;
    return v_load((const real *)(const void *)row + c);
}

/* Values of codes of a row, with the scale and the shift at `factor`. */
ATTN_INLINE vec FN(code_values)(vec codes, const attn_values *v, int64_t factor)
{
    const vec scale = v_set1((real)v->scale[factor]);
    return v->shift ? v_fma(scale, codes, v_set1((real)v->shift[factor])) : v_mul(scale, codes);
}

/* Stores or adds sums of VL columns, a vector for each of `rows` lanes. */
ATTN_INLINE void FN(few_columns_end)(real *ot, const vec *sum, const real *alpha, const int rows)
{
    for (int first = 0; first < rows; first += 4) {
        real column[VL][4], *to = ot + first;
        FN(quads)(column, 1, sum + first);
        for (int c = 0; c < VL; c++, to += STRIP) {
            const vec x = v_load4(column[c]);
            v_store4(to, alpha ? v_fma(v_load4(to), v_load4(alpha + first), x) : x);
        }
    }
}

#if defined v_join_f32 && REAL_BITS == 32
enum { FN(RUN) = VL / 2 }; /* columns transposed at a time */

/* Loads VL / 2 elements from column c on of two rows, side by side. */
ATTN_INLINE vec FN(load_two)(const char *row, const char *next, int64_t c, const int32_t dtype)
{
    const int64_t size = dtype == ATTN_F16 || dtype == ATTN_BF16 ? 2 : sizeof(real);
    const void *a = row + c * size, *b = next + c * size;
    return dtype == ATTN_F16 ? v_join_f16(a, b) : dtype == ATTN_BF16 ? v_join_bf16(a, b)
                                                                     : v_join_f32(a, b);
}

/* x[i] = column c + i of VL rows. Half of a vector of each row takes fewer registers and shuffles
 * than a whole one, so that the next shuffles overlap products. */
ATTN_INLINE void FN(columns)(vec *x, const char *const *at, int64_t c, const int32_t dtype)
{
    vec y[VL / 2];
    ATTN_UNROLL for (int i = 0; i < VL / 2; i++) {
        const char *const *row = at + i / 4 * 8 + i % 4;
        y[i] = FN(load_two)(row[0], row[4], c, dtype);
    }
    FN(shuffle)(y, 4);
    FN(shuffle)(y + 4, 4);
    ATTN_UNROLL for (int i = 0; i < VL / 4; i++) {
        x[i] = v_even_quarters(y[i], y[i + 4]);
        x[i + 4] = v_odd_quarters(y[i], y[i + 4]);
    }
}
#else
enum { FN(RUN) = VL };

/* x[i] = column c + i of VL rows. */
ATTN_INLINE void FN(columns)(vec *x, const char *const *at, int64_t c, const int32_t dtype)
{
    ATTN_UNROLL for (int i = 0; i < VL; i++) x[i] = FN(load_row)(at[i], c, dtype);
    FN(transpose)(x);
}
#endif

#include "cpu/ukernel/body/body_one.h"

/* Computes the scores of the first n <= VL of the rows of K at `row` for `rows` lanes; d is a
 * multiple of VL. */
ATTN_INLINE void FN(few_keys)(real *s, const char *const *row, int64_t n, const real *qt, int64_t d,
                              attn_soon *soon, const int32_t dtype, const int rows)
{
    const char *at[VL];
    vec sum[8];
    for (int i = 0; i < VL; i++) {
        at[i] = row[i < n ? i : n - 1];
    }
    ATTN_UNROLL for (int r = 0; r < FN(fours)(rows); r++) sum[r] = v_set1(0);
    for (int64_t first = 0; first < d; first += ATTN_DOT_CHUNK) {
        const int64_t end = d - first < ATTN_DOT_CHUNK ? d : first + ATTN_DOT_CHUNK;
        vec chunk[8];
        ATTN_UNROLL for (int r = 0; r < rows; r++) chunk[r] = v_set1(0);
        for (int64_t c = first; c < end; c += FN(RUN)) {
            vec x[FN(RUN)];
            attn_fetch_soon(soon, FN(RUN) * VL);
            FN(columns)(x, at, c, dtype);
            ATTN_UNROLL for (int i = 0; i < FN(RUN); i++) {
                ATTN_UNROLL for (int r = 0; r < rows; r++) chunk[r] =
                    v_fma(x[i], v_set1(qt[(c + i) * STRIP + r]), chunk[r]);
            }
        }
        ATTN_UNROLL for (int r = 0; r < rows; r++) sum[r] =
            first > 0 ? v_add(sum[r], chunk[r]) : chunk[r];
    }
    FN(few_keys_end)(s, sum, (int)(n < VL ? n : VL), rows);
}

/* Computes the scores of a key for a vector of lanes, or four of them; or, with `own`, of a key for
 * each lane, which lie as QT does. The chains of two chunks are side by side. */
ATTN_INLINE void FN(one_key)(real *s, const real *k, const real *qt, int64_t d, const bool four,
                             const bool own)
{
    vec sum = v_set1(0);
    for (int64_t first = 0; first < d; first += 2 * ATTN_DOT_CHUNK) {
        const int64_t left = d - first, chunk = left < ATTN_DOT_CHUNK ? left : ATTN_DOT_CHUNK,
                      more = left - chunk < ATTN_DOT_CHUNK ? left - chunk : ATTN_DOT_CHUNK;
        vec x[2] = {v_set1(0), v_set1(0)};
        for (int64_t c = 0; c < chunk; c++) {
            ATTN_UNROLL for (int i = 0; i < 2; i++) {
                const int64_t at = first + i * ATTN_DOT_CHUNK + c;
                if (i == 0 || c < more) {
                    const real *q = qt + at * STRIP, *of = own ? k + at * STRIP : k + at;
                    const vec y = !own ? v_set1(*of) : four ? v_load4(of) : v_load(of);
                    x[i] = v_fma(y, four ? v_load4(q) : v_load(q), x[i]);
                }
            }
        }
        sum = first > 0 ? v_add(sum, x[0]) : x[0];
        sum = more > 0 ? v_add(sum, x[1]) : sum;
    }
    v_store(s, sum);
}

/* Computes scores of n rows of K. */
ATTN_INLINE void FN(few_rows)(real *s, const attn_keys *keys, int lanes, attn_soon *soon,
                              const int32_t dtype)
{
    enum { ALONE = 4 }; /* fewer keys are faster one by one */
    const char *const *row = keys->rows;
    if (lanes == 1 && keys->n > ALONE && keys->d % ATTN_DOT_CHUNK == 0) {
        FN(one_rows)(s, keys, soon, dtype);
        return;
    }
    for (int64_t n = keys->n; n > 0; n -= VL, row += VL, s += VL * STRIP) {
        if (n <= ALONE && dtype == FN(OWN)) {
            for (int64_t key = 0; key < n; key++, s += STRIP) {
                const real *k = (const real *)(const void *)row[key];
                if (lanes <= 4) {
                    FN(one_key)(s, k, keys->qt, keys->d, true, false);
                } else {
                    FN(one_key)(s, k, keys->qt, keys->d, false, false);
                }
            }
        } else if (lanes <= 4) {
            FN(few_keys)(s, row, n, keys->qt, keys->d, soon, dtype, 4);
        } else {
            FN(few_keys)(s, row, n, keys->qt, keys->d, soon, dtype, 8);
        }
    }
}

static void FN(qk_rows)(void *s, const attn_keys *keys, int lanes, attn_soon *soon)
{
    switch (REAL_BITS == 32 ? keys->dtype : FN(OWN)) {
    case ATTN_F16:
        FN(few_rows)(s, keys, lanes, soon, ATTN_F16);
        return;
    case ATTN_BF16:
        FN(few_rows)(s, keys, lanes, soon, ATTN_BF16);
        return;
    default:
        FN(few_rows)(s, keys, lanes, soon, FN(OWN));
    }
}

/* Computes scores of keys of a panel, if columns are whole vectors. Returns their number. */
static int64_t FN(few_qk)(real *s, const real *k, const real *qt, int64_t d, int64_t n, int lanes,
                          attn_soon *soon)
{
    const int64_t count = d > 0 && d % VL == 0 ? n : 0;
    const char *row[ATTN_KEY_BLOCK];
    for (int64_t key = 0; key < count; key++, k += d) {
        row[key] = (const char *)k;
    }
    const attn_keys keys = {.qt = qt, .d = d, .n = count, .rows = row};
    FN(few_rows)(s, &keys, lanes, soon, FN(OWN));
    return count;
}

/* ---- V^T P ----------------------------------------------------------------------------------- */

/* Computes `width` vectors of columns of OT, from column c on, for `rows` lanes. */
ATTN_INLINE void FN(few_columns)(real *ot, const attn_values *v, int64_t c, const real *p,
                                 int64_t n, const real *alpha, const int32_t dtype, const int rows,
                                 const int width)
{
    const real *panel = (const real *)v->v + v->at * v->dv_pad;
    const bool codes = attn_is_code(dtype);
    int64_t factor[4];
    vec sum[4][8];
    ATTN_UNROLL for (int i = 0; i < width; i++) factor[i] = codes ? (c + i * VL) / v->group : 0;
    ATTN_UNROLL for (int r = 0; r < FN(fours)(rows); r++) {
        ATTN_UNROLL for (int i = 0; i < width; i++) sum[i][r] = v_set1(0);
    }
    for (int64_t key = 0; key < n; key++, p += STRIP) {
        const char *row = dtype ? v->rows[key] : (const char *)(panel + key * v->dv_pad);
        vec y[4];
        attn_fetch_soon(v->soon, width * VL);
        ATTN_UNROLL for (int i = 0; i < width; i++) {
            y[i] = FN(load_row)(row, c + i * VL, dtype ? dtype : FN(OWN));
            if (codes) {
                y[i] = FN(code_values)(y[i], v, factor[i] + key * v->groups);
            }
        }
        ATTN_UNROLL for (int r = 0; r < rows; r++) {
            const vec one = v_set1(p[r]);
            ATTN_UNROLL for (int i = 0; i < width; i++) sum[i][r] = v_fma(y[i], one, sum[i][r]);
        }
    }
    ATTN_UNROLL for (int i = 0; i < width; i++)
        FN(few_columns_end)(ot + (c + i * VL) * STRIP, sum[i], alpha, rows);
}

/* Computes whole vectors of columns. Returns the number of these columns. */
ATTN_INLINE int64_t FN(few_pv)(real *ot, const attn_values *v, const real *p, int64_t n,
                               const real *alpha, int lanes, const int32_t dtype)
{
    int64_t c = 0;
    if (lanes == 1) {
        return FN(one_pv)(ot, v, p, n, alpha, dtype);
    }
    for (; c + 4 * VL <= v->dv_pad && lanes <= 4; c += 4 * VL) {
        FN(few_columns)(ot, v, c, p, n, alpha, dtype, 4, 4);
    }
    for (; c + 2 * VL <= v->dv_pad && lanes > 4; c += 2 * VL) {
        FN(few_columns)(ot, v, c, p, n, alpha, dtype, 8, 2);
    }
    for (; c + VL <= v->dv_pad; c += VL) {
        FN(few_columns)(ot, v, c, p, n, alpha, dtype, 8, 1);
    }
    return c;
}

static int64_t FN(few_values)(real *ot, const attn_values *v, const real *p, int64_t n,
                              const real *alpha, int lanes)
{
    switch (v->dtype) {
    case 0:
        return FN(few_pv)(ot, v, p, n, alpha, lanes, 0);
#if REAL_BITS == 32 && defined v_load_i8
    case ATTN_F16:
        return FN(few_pv)(ot, v, p, n, alpha, lanes, ATTN_F16);
    case ATTN_BF16:
        return FN(few_pv)(ot, v, p, n, alpha, lanes, ATTN_BF16);
    case ATTN_I8:
        return FN(few_pv)(ot, v, p, n, alpha, lanes, ATTN_I8);
    case ATTN_I4X2:
        return FN(few_pv)(ot, v, p, n, alpha, lanes, ATTN_I4X2);
    case ATTN_E4M3:
        return FN(few_pv)(ot, v, p, n, alpha, lanes, ATTN_E4M3);
    case ATTN_E5M2:
        return FN(few_pv)(ot, v, p, n, alpha, lanes, ATTN_E5M2);
#endif
    default:
        return FN(few_pv)(ot, v, p, n, alpha, lanes, FN(OWN));
    }
}

/* True for rows whose columns are whole vectors. */
static bool FN(takes_rows)(int32_t dtype, int64_t cols)
{
#if REAL_BITS == 32 && defined v_load_i8
    const bool other = dtype == ATTN_F16 || dtype == ATTN_BF16 || attn_is_code(dtype);
#else
    const bool other = false;
#endif
    return FN(FEW) > 0 && cols > 0 && cols % VL == 0 && (other || dtype == FN(OWN));
}
