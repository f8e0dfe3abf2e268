/*
 * scalar_grad.h: the reference of table_grad.h, included by scalar.h with its parameters.
 */

static void FN(grad_dots)(void *d_o_t, const void *a, const void *b, int64_t d)
{
    for (int lane = 0; lane < FN(STRIP); lane++) {
        real sum = 0;
        for (int64_t c = 0; c < d;) {
            real chunk = 0;
            for (int64_t end = c + ATTN_DOT_CHUNK < d ? c + ATTN_DOT_CHUNK : d; c < end; c++) {
                int64_t at = c * FN(STRIP) + lane;
                chunk = FMA(((const real *)a)[at], ((const real *)b)[at], chunk);
            }
            sum += chunk;
        }
        ((real *)d_o_t)[lane] = sum;
    }
}

static void FN(grad_softmax)(void *s, void *dp, int64_t n, const attn_grad_tile *tile, int lanes)
{
    const real c = (real)tile->exponent, least = (real)(EXP2_MIN / tile->exponent);
    for (int64_t i = 0; i < n * FN(STRIP); i++) {
        int64_t lane = i % FN(STRIP);
        if (lane >= lanes) {
            continue;
        }
        real *score = (real *)s + i, *grad = (real *)dp + i,
             keep = tile->keep ? ((const real *)tile->keep)[i] : 1;
        real d = *score - ((const real *)tile->lse)[lane], p = FN(exp2)(d > 0 ? 0 : d, c, least);
        real ds = p * (*grad * keep - ((const real *)tile->delta)[lane]);
        *score = p * keep;
        *grad = p < REAL_MIN ? 0 : ds * (real)tile->factor;
        if (tile->plain) {
            ((real *)tile->plain)[i] = p < REAL_MIN ? 0 : ds;
        }
    }
}

/* With e = exp(-2|x|): 1 - tanh^2(x) = 4 e / (1 + e)^2, without cancellation. */
static void FN(grad_softcap)(void *ds, const void *s, int64_t n, double scale, double cap,
                             int lanes)
{
    for (int64_t i = 0; i < n * FN(STRIP); i++) {
        if (i % FN(STRIP) >= lanes) {
            continue;
        }
        real x = ((const real *)s)[i] * (real)scale / (real)cap;
        real e = FN(exp2)(-2 * (x < 0 ? -x : x), (real)1.4426950408889634,
                          (real)(EXP2_MIN / 1.4426950408889634));
        real *d = (real *)ds + i;
        *d = *d == 0 ? 0 : *d * (4 * e / ((1 + e) * (1 + e)));
    }
}

static int64_t FN(x_stride)(int64_t cols)
{
    return cols;
}
#include "cpu/ukernel/clean.h"

static uint64_t FN(x_bytes)(int64_t cols)
{
    return (uint64_t)FN(STRIP) * (uint64_t)cols * sizeof(real);
}

static void FN(pack_both)(void *qt, void *x, const void *const *row, int64_t stride, int32_t dtype,
                          int64_t n, int64_t cols, double factor)
{
    FN(pack_q)(qt, row, stride, dtype, n, factor, FN(STRIP));
    int64_t step = stride * (int64_t)attn_dtype_size(dtype);
    for (int64_t i = 0; i < FN(STRIP) * cols; i++) {
        const char *from = row[i / cols];
        bool there = from && i % cols < n;
        ((real *)x)[i] = there ? (real)attn_element_to_f64(from + i % cols * step, dtype) : 0;
    }
}

static void FN(grad_clear)(void *p, int64_t first, int64_t last)
{
    for (int64_t i = first * FN(STRIP); i < last * FN(STRIP); i++) {
        ((real *)p)[i] = 0;
    }
}

static void FN(grad_rows)(void *g, const void *p, int64_t at, const void *x, int64_t cols,
                          int64_t n, int first, int last)
{
    for (int64_t key = 0; key < n; key++) {
        for (int64_t c = 0; c < cols; c++) {
            real sum = 0;
            for (int64_t row = first; row < last; row++) {
                int64_t i =
                    (row / FN(STRIP) * ATTN_KEY_BLOCK + at + key) * FN(STRIP) + row % FN(STRIP);
                sum = FMA(((const real *)p)[i], ((const real *)x)[row * cols + c], sum);
            }
            ((real *)g)[key * cols + c] += sum;
        }
    }
}

static bool FN(grad_put)(void *first, int64_t row_stride, int64_t col_stride, int32_t dtype,
                         const void *g, int64_t cols_pad, int64_t cols, int64_t n)
{
    int64_t size = (int64_t)attn_dtype_size(dtype);
    bool finite = true;
    for (int64_t i = 0; i < n * cols; i++) {
        real x = ((const real *)g)[i / cols * cols_pad + i % cols];
        attn_element_from_f64((char *)first +
                                  (i / cols * row_stride + i % cols * col_stride) * size,
                              dtype, (double)x);
        finite = finite && x - x == 0;
    }
    return finite;
}

static void FN(grad_drop)(void *tile, int64_t done, int64_t n, const attn_drop_tile *drop,
                          bool times)
{
    for (int64_t i = 0; i < n * FN(STRIP); i++) {
        const int64_t lane = i % FN(STRIP), key = drop->first_key + i / FN(STRIP);
        const uint32_t number = attn_dropout_number(drop->dropout, drop->stream[lane],
                                                    drop->query[lane], (uint64_t)key);
        real keep = number >= drop->dropout->limit ? (real)drop->dropout->scale : 0;
        real *z = (real *)tile + done * FN(STRIP) + i;
        *z = times ? *z * keep : keep;
    }
}

static const attn_ukernel_grad FN(grad) = {
    .vector = 1,
    .row_step = 1,
    ATTN_TABLE_GRAD_KERNELS,
};
