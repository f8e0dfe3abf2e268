/*
 * body_few.h: the part of body.h for products with few lanes, as in a step of decoding: keys along
 * the lanes in K QT, columns in V^T P, a vector of sums for each row of Q. The order of each sum is
 * that of body.h.
 */
enum { FN(FEW) = VL >= 8 ? VL / 2 : 0 }; /* most lanes, 4 or 8 */

/* Computes scores of VL keys with `rows` lanes; d > 0 is a multiple of VL. */
ATTN_INLINE void FN(few_keys)(real *s, const real *k, const real *qt, int64_t d, const int rows,
                              attn_soon *soon)
{
    real scores[8][VL];
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
    ATTN_UNROLL for (int r = 0; r < rows; r++) v_store(scores[r], sum[r]);
    for (int key = 0; key < VL; key++, s += STRIP) {
        v_store(s, v_set1(0)); /* lanes beyond `rows`, which the softmax takes too */
        ATTN_UNROLL for (int r = 0; r < rows; r++) s[r] = scores[r][key];
    }
}

/* Computes `width` vectors of columns of OT for `rows` lanes, of which `lanes` are stored. */
ATTN_INLINE void FN(few_columns)(real *ot, const real *x, const real *p, int64_t dv_pad, int64_t n,
                                 const real *alpha, int lanes, const int rows, const int width,
                                 attn_soon *soon)
{
    real sums[8][4 * VL];
    vec sum[8][4];
    ATTN_UNROLL for (int r = 0; r < rows; r++) {
        ATTN_UNROLL for (int v = 0; v < width; v++) sum[r][v] = v_set1(0);
    }
    for (int64_t key = 0; key < n; key++, x += dv_pad, p += STRIP) {
        vec y[4];
        attn_fetch_soon(soon, width * VL);
        ATTN_UNROLL for (int v = 0; v < width; v++) y[v] = v_load(x + v * VL);
        ATTN_UNROLL for (int r = 0; r < rows; r++) {
            const vec one = v_set1(p[r]);
            ATTN_UNROLL for (int v = 0; v < width; v++) sum[r][v] = v_fma(y[v], one, sum[r][v]);
        }
    }
    ATTN_UNROLL for (int r = 0; r < rows; r++) {
        ATTN_UNROLL for (int v = 0; v < width; v++) v_store(sums[r] + v * VL, sum[r][v]);
    }
    for (int c = 0; c < width * VL; c++, ot += STRIP) {
        for (int r = 0; r < lanes; r++) {
            ot[r] = alpha ? FUSED(ot[r], alpha[r], sums[r][c]) : sums[r][c];
        }
    }
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
        FN(few_columns)(ot + c * STRIP, x + c, p, dv_pad, n, alpha, lanes, 4, 4, soon);
    }
    for (; c + 2 * VL <= dv_pad && lanes > 4; c += 2 * VL) {
        FN(few_columns)(ot + c * STRIP, x + c, p, dv_pad, n, alpha, lanes, 8, 2, soon);
    }
    for (; c + VL <= dv_pad; c += VL) {
        FN(few_columns)(ot + c * STRIP, x + c, p, dv_pad, n, alpha, lanes, 8, 1, soon);
    }
    return c;
}
