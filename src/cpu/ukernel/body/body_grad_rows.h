/*
 * body_grad_rows.h: those members of table_grad.h that are products, once for any vector width,
 * and the table of all of them. Included by body.h with its parameters.
 */
#include "cpu/ukernel/body/body_grad.h"

/* Rows of X lie a vector further apart than their columns need: those of 128 columns side by side
 * would all fall into the same few sets of the first-level cache. */
static int64_t FN(x_stride)(int64_t cols)
{
    return cols + VL;
}

static uint64_t FN(x_bytes)(int64_t cols)
{
    return (uint64_t)STRIP * (uint64_t)FN(x_stride)(cols) * sizeof(real);
}

enum { FN(STRIP) = STRIP };
#include "cpu/ukernel/clean.h"

static void FN(pack_both)(void *qt, void *x, const void *const *row, int64_t stride, int32_t dtype,
                          int64_t n, int64_t cols, double factor)
{
    real *to = x;
    FN(pack_q)(qt, row, stride, dtype, n, factor, STRIP);
    for (int lane = 0; lane < STRIP; lane++, to += FN(x_stride)(cols)) {
        const int64_t columns = row[lane] ? n : 0;
        if (columns > 0) {
            FN(widen)(to, row[lane], stride, dtype, columns);
        }
        for (int64_t c = columns; c < cols; c++) {
            to[c] = 0;
        }
    }
}

static void FN(grad_clear)(void *p, int64_t first, int64_t last)
{
    memset((real *)p + first * STRIP, 0, (size_t)((last - first) * STRIP) * sizeof(real));
}

static void FN(grad_dots)(void *d_o_t, const void *a_, const void *b_, int64_t d)
{
    const real *a = a_, *b = b_;
    vec sum[NV], chunk[NV];
    ATTN_UNROLL for (int v = 0; v < NV; v++) sum[v] = v_set1(0);
    for (int64_t c = 0; c < d;) {
        ATTN_UNROLL for (int v = 0; v < NV; v++) chunk[v] = v_set1(0);
        for (int64_t end = c + ATTN_DOT_CHUNK < d ? c + ATTN_DOT_CHUNK : d; c < end;
             c++, a += STRIP, b += STRIP) {
            ATTN_UNROLL for (int v = 0; v < NV; v++) {
                chunk[v] = v_fma(v_load(a + v * VL), v_load(b + v * VL), chunk[v]);
            }
        }
        ATTN_UNROLL for (int v = 0; v < NV; v++) sum[v] = v_add(sum[v], chunk[v]);
    }
    ATTN_UNROLL for (int v = 0; v < NV; v++) v_store((real *)d_o_t + v * VL, sum[v]);
}

/* Rows of P and X come in multiples of this number: their first AHEAD are in one strip, and the
 * part of P that is read has been written, in whole vectors. */
enum { FN(ROW_STEP) = VL < 4 ? VL : 4 };

/* Place of a key's element in a row of P. */
ATTN_INLINE int64_t FN(left_at)(int row)
{
    return row + (int64_t)(row / STRIP) * (ATTN_KEY_BLOCK - 1) * STRIP;
}

/* Products of rows first .. last-1, of MR keys. */
ATTN_INLINE void FN(grad_panel)(vec (*acc)[NV], const real *p, const real *x, int64_t stride,
                                int first, int last, const int width)
{
    for (x += first * stride; first < last;) {
        const real *a = p + FN(left_at)(first);
        const int whole = first - first % STRIP + STRIP, end = whole < last ? whole : last;
        for (; first < end; first++, a++, x += stride) {
            vec row[NV];
            ATTN_UNROLL for (int v = 0; v < width; v++) row[v] = v_load(x + v * VL);
            ATTN_UNROLL for (int r = 0; r < MR; r++) {
                vec b = v_set1(a[r * STRIP]);
                ATTN_UNROLL for (int v = 0; v < width; v++) acc[r][v] = v_fma(b, row[v], acc[r][v]);
            }
        }
    }
}

/* n keys, `width` vectors of columns. A group's sums end between the first products of the next, as
 * in body.h. */
ATTN_INLINE void FN(grad_columns)(real *g, const real *p, const real *x, int64_t cols, int64_t n,
                                  int first, int last, const int width)
{
    const int ahead = width == NV ? AHEAD : 0;
    const int64_t stride = FN(x_stride)(cols), at = FN(left_at)(first);
    const real *begin = x + first * stride;
    vec acc[MR][NV];
    ATTN_UNROLL for (int r = 0; r < MR; r++)
        FN(begin_sum)(acc[r], p + at + r * STRIP, 1, begin, stride, ahead, width);
    for (; n > 0; n -= MR) {
        FN(grad_panel)(acc, p, x, stride, first + ahead, last, width);
        p += MR * STRIP;
        ATTN_UNROLL for (int r = 0; r < MR; r++, g += cols) {
            ATTN_UNROLL for (int v = 0; v < width; v++)
                v_store(g + v * VL, v_add(v_load(g + v * VL), acc[r][v]));
            if (ahead == 0 || n > MR) {
                FN(begin_sum)(acc[r], p + at + r * STRIP, 1, begin, stride, ahead, width);
            }
        }
    }
}

static void FN(grad_rows)(void *g_, const void *p, int64_t at, const void *x_, int64_t cols,
                          int64_t n, int first, int last)
{
    const real *a = (const real *)p + at * STRIP;
    int64_t vectors = cols / VL;
    for (int64_t v = 0; v < vectors;) {
        /* a single vector has too few accumulators to be fast: 4 = 2 + 2 rather than 3 + 1 */
        int64_t left = vectors - v, width = left == NV + 1 && NV > 2 ? 2 : left < NV ? left : NV;
        real *g = (real *)g_ + v * VL;
        const real *x = (const real *)x_ + v * VL;
        switch (width) {
        case 1:
            FN(grad_columns)(g, a, x, cols, n, first, last, 1);
            break;
        case 2:
            FN(grad_columns)(g, a, x, cols, n, first, last, 2);
            break;
        default:
            FN(grad_columns)(g, a, x, cols, n, first, last, NV);
        }
        v += width;
    }
}

static const attn_ukernel_grad FN(grad) = {
    .vector = VL,
    .row_step = FN(ROW_STEP),
    ATTN_TABLE_GRAD_KERNELS,
};
