/*
 * body_few.h: the part of body.h for products with few lanes, as in a step of decoding: keys along
 * the lanes in K QT, columns in V^T P, a vector of sums for each row of Q. The order of each sum is
 * that of body.h.
 */
enum { FN(FEW) = VL >= 8 ? VL / 2 : 0 }; /* most lanes, 4 or 8 */
#ifndef v_load4
#define v_load4 v_load /* FEW is 0 */
#endif

/* to[i] = lane i of four vectors. */
ATTN_INLINE void FN(quads)(real (*to)[4], const vec *x)
{
#ifdef v_store_quads
    vec y[VL] = {x[0], x[1], x[2], x[3]};
    FN(shuffle)(y, 4);
    ATTN_UNROLL for (int i = 0; i < 4; i++) v_store_quads(to + i, 4, y[i]);
#else
    real lanes[4][VL];
    ATTN_UNROLL for (int r = 0; r < 4; r++) v_store(lanes[r], x[r]);
    for (int i = 0; i < VL; i++) {
        ATTN_UNROLL for (int r = 0; r < 4; r++) to[i][r] = lanes[r][i];
    }
#endif
}

/* Stores the scores of n <= VL keys, vectors of keys for each of `rows` lanes. Lanes beyond become
 * 0, since the softmax takes them too. */
ATTN_INLINE void FN(few_keys_end)(real *s, const vec *sum, int n, const int rows)
{
    real low[VL][4], high[VL][4];
    FN(quads)(low, sum);
    if (rows > 4) {
        FN(quads)(high, sum + 4);
    }
    for (int key = 0; key < n; key++, s += STRIP) {
        v_store(s, v_load4(low[key]));
        ATTN_UNROLL for (int r = 4; r < rows; r++) s[r] = high[key][r - 4];
    }
}

/* Stores or adds sums of VL columns, a vector for each of `rows` lanes. */
ATTN_INLINE void FN(few_columns_end)(real *ot, const vec *sum, const real *alpha, const int rows)
{
    for (int first = 0; first < rows; first += 4) {
        real column[VL][4], *to = ot + first;
        FN(quads)(column, sum + first);
        for (int c = 0; c < VL; c++, to += STRIP) {
            ATTN_UNROLL for (int r = 0; r < 4; r++) to[r] =
                alpha ? FUSED(to[r], alpha[first + r], column[c][r]) : column[c][r];
        }
    }
}

/* Computes scores of VL keys with `rows` lanes; d > 0 is a multiple of VL. */
ATTN_INLINE void FN(few_keys)(real *s, const real *k, const real *qt, int64_t d, const int rows,
                              attn_soon *soon)
{
    vec sum[8];
    ATTN_UNROLL for (int r = 0; r < rows; r++) sum[r] = v_set1(0);
    for (int64_t first = 0; first < d; first += ATTN_DOT_CHUNK) {
        const int64_t end = d - first < ATTN_DOT_CHUNK ? d : first + ATTN_DOT_CHUNK;
        vec chunk[8];
        ATTN_UNROLL for (int r = 0; r < rows; r++) chunk[r] = v_set1(0);
        for (int64_t c = first; c < end; c += VL) {
            vec x[VL];
            attn_fetch_soon(soon, VL * VL);
            ATTN_UNROLL for (int i = 0; i < VL; i++) x[i] = v_load(k + i * d + c);
            FN(transpose)(x);
            ATTN_UNROLL for (int i = 0; i < VL; i++) {
                ATTN_UNROLL for (int r = 0; r < rows; r++) chunk[r] =
                    v_fma(x[i], v_set1(qt[(c + i) * STRIP + r]), chunk[r]);
            }
        }
        ATTN_UNROLL for (int r = 0; r < rows; r++) sum[r] =
            first > 0 ? v_add(sum[r], chunk[r]) : chunk[r];
    }
    FN(few_keys_end)(s, sum, VL, rows);
}

/* Computes `width` vectors of columns of OT for `rows` lanes. */
ATTN_INLINE void FN(few_columns)(real *ot, const real *x, const real *p, int64_t dv_pad, int64_t n,
                                 const real *alpha, const int rows, const int width,
                                 attn_soon *soon)
{
    vec sum[4][8];
    ATTN_UNROLL for (int r = 0; r < rows; r++) {
        ATTN_UNROLL for (int v = 0; v < width; v++) sum[v][r] = v_set1(0);
    }
    for (int64_t key = 0; key < n; key++, x += dv_pad, p += STRIP) {
        vec y[4];
        attn_fetch_soon(soon, width * VL);
        ATTN_UNROLL for (int v = 0; v < width; v++) y[v] = v_load(x + v * VL);
        ATTN_UNROLL for (int r = 0; r < rows; r++) {
            const vec one = v_set1(p[r]);
            ATTN_UNROLL for (int v = 0; v < width; v++) sum[v][r] = v_fma(y[v], one, sum[v][r]);
        }
    }
    ATTN_UNROLL for (int v = 0; v < width; v++)
        FN(few_columns_end)(ot + v * VL * STRIP, sum[v], alpha, rows);
}

/* Computes scores of whole runs of VL keys. Returns the number of these keys. */
static int64_t FN(few_qk)(real *s, const real *k, const real *qt, int64_t d, int64_t n, int lanes,
                          attn_soon *soon)
{
    int64_t key = 0;
    for (; d > 0 && d % VL == 0 && key + VL <= n; key += VL) {
        if (lanes <= 4) {
            FN(few_keys)(s + key * STRIP, k + key * d, qt, d, 4, soon);
        } else {
            FN(few_keys)(s + key * STRIP, k + key * d, qt, d, 8, soon);
        }
    }
    return key;
}

/* Computes whole vectors of columns. Returns the number of these columns. */
static int64_t FN(few_pv)(real *ot, const real *x, const real *p, int64_t dv_pad, int64_t n,
                          const real *alpha, int lanes, attn_soon *soon)
{
    int64_t c = 0;
    for (; c + 4 * VL <= dv_pad && lanes <= 4; c += 4 * VL) {
        FN(few_columns)(ot + c * STRIP, x + c, p, dv_pad, n, alpha, 4, 4, soon);
    }
    for (; c + 2 * VL <= dv_pad && lanes > 4; c += 2 * VL) {
        FN(few_columns)(ot + c * STRIP, x + c, p, dv_pad, n, alpha, 8, 2, soon);
    }
    for (; c + VL <= dv_pad; c += VL) {
        FN(few_columns)(ot + c * STRIP, x + c, p, dv_pad, n, alpha, 8, 1, soon);
    }
    return c;
}
