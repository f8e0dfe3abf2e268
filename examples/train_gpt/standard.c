/*
 * standard.c: see standard.h. Compiled with -ffast-math like layers.c: the softmax is vectorised.
 */
#include "standard.h"

#include <tgmath.h>

#include "fail.h"
#include "matmul.h"

/* One matrix, and one of bytes for dropout; a multiple of a cache line. */
uint64_t standard_scratch_bytes(int length, double dropout_p)
{
    return ((uint64_t)length * (uint64_t)length * (sizeof(real) + (dropout_p > 0)) + 63) / 64 * 64;
}

/* Row i sees the keys up to i: their scores become probabilities, the others 0. */
static void softmax_row(real *row, int visible, int length, real scale)
{
    real most = row[0], sum = 0;
    for (int j = 1; j < visible; j++) {
        most = row[j] > most ? row[j] : most;
    }
    for (int j = 0; j < visible; j++) {
        row[j] = exp((row[j] - most) * scale);
        sum += row[j];
    }
    for (int j = 0; j < visible; j++) {
        row[j] /= sum;
    }
    for (int j = visible; j < length; j++) {
        row[j] = 0;
    }
}

/* Asks libattn for the positions that its dropout keeps, so that both ways drop the same ones. */
static const uint8_t *dropout_mask(const standard_head *h)
{
    uint8_t *keep = (uint8_t *)h->scratch + (size_t)h->length * (size_t)h->length * sizeof(real);
    attn_dropout_mask_args args = {
        .struct_size = sizeof args,
        .keep = attn_tensor_bshd(keep, ATTN_BOOL, 1, 1, h->length, h->length),
        .dropout_p = h->dropout.p,
        .dropout_seed = h->dropout.seed,
        .dropout_offset = h->dropout.offset,
    };
    if (attn_dropout_mask(h->context, &args) != ATTN_OK) {
        fail(EXIT_INTERNAL, "attn_dropout_mask: %s", attn_last_error());
    }
    return keep;
}

/* to = from where kept, enlarged for the dropped ones; to may be from. */
static void drop(const standard_head *h, const uint8_t *keep, const real *from, real *to)
{
    real scale = h->dropout.p < 1 ? (real)(1 / (1 - h->dropout.p)) : 0;
    for (int64_t i = 0; i < (int64_t)h->length * h->length; i++) {
        to[i] = keep[i] ? from[i] * scale : 0;
    }
}

void standard_forward(const standard_head *h, real *o)
{
    int n = h->length, d = h->dim;
    real *p = h->probabilities, *weights = p, scale = 1 / sqrt((real)d);
    matmul(n, n, d, matrix_rows(h->q, h->row), transposed(matrix_rows(h->k, h->row)),
           matrix_rows(p, n), false);
    for (int i = 0; i < n; i++) {
        softmax_row(p + (int64_t)i * n, i + 1, n, scale);
    }
    if (h->dropout.p > 0) {
        weights = h->scratch;
        drop(h, dropout_mask(h), p, weights);
    }
    matmul(n, d, n, matrix_rows(weights, n), matrix_rows(h->v, h->row), matrix_rows(o, h->out_row),
           false);
}

/* With dP in ds: dS = P (dP - rowsum(P dP)) scale. */
static void softmax_backward(int n, const real *p, real *ds, real scale)
{
    for (int i = 0; i < n; i++, p += n, ds += n) {
        real along = 0;
        for (int j = 0; j < n; j++) {
            along += p[j] * ds[j];
        }
        for (int j = 0; j < n; j++) {
            ds[j] = p[j] * (ds[j] - along) * scale;
        }
    }
}

void standard_backward(const standard_head *h, const real *d_o, real *dq, real *dk, real *dv)
{
    int n = h->length, d = h->dim;
    const uint8_t *keep = NULL;
    const real *weights = h->probabilities;
    real *ds = h->scratch;
    if (h->dropout.p > 0) {
        keep = dropout_mask(h);
        drop(h, keep, h->probabilities, ds);
        weights = ds;
    }
    matrix square = matrix_rows(ds, n), out = matrix_rows(d_o, h->out_row);
    matmul(n, d, n, transposed(matrix_rows(weights, n)), out, matrix_rows(dv, h->row), false);
    matmul(n, n, d, out, transposed(matrix_rows(h->v, h->row)), square, false);
    if (keep != NULL) {
        drop(h, keep, ds, ds);
    }
    softmax_backward(n, h->probabilities, ds, 1 / sqrt((real)d));
    matmul(n, d, n, square, matrix_rows(h->k, h->row), matrix_rows(dq, h->row), false);
    matmul(n, d, n, transposed(square), matrix_rows(h->q, h->row), matrix_rows(dk, h->row), false);
}
