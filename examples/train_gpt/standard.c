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
static const uint8_t *dropout_mask(const standard_head *head)
{
    uint8_t *keep =
        (uint8_t *)head->scratch + (size_t)head->length * (size_t)head->length * sizeof(real);
    attn_dropout_mask_args args = {
        .struct_size = sizeof args,
        .keep = attn_tensor_bshd(keep, ATTN_BOOL, 1, 1, head->length, head->length),
        .dropout_p = head->dropout.p,
        .dropout_seed = head->dropout.seed,
        .dropout_offset = head->dropout.offset,
    };
    if (attn_dropout_mask(head->context, &args) != ATTN_OK) {
        fail(EXIT_INTERNAL, "attn_dropout_mask: %s", attn_last_error());
    }
    return keep;
}

/* to = from where kept, enlarged for the dropped ones; to may be from. */
static void drop(const standard_head *head, const uint8_t *keep, const real *from, real *to)
{
    real scale = head->dropout.p < 1 ? (real)(1 / (1 - head->dropout.p)) : 0;
    for (int64_t i = 0; i < (int64_t)head->length * head->length; i++) {
        to[i] = keep[i] ? from[i] * scale : 0;
    }
}

void standard_forward(const standard_head *head, real *o)
{
    int n = head->length, d = head->dim;
    real *p = head->probabilities, *weights = p, scale = 1 / sqrt((real)d);
    matmul(n, n, d, matrix_rows(head->q, head->row), transposed(matrix_rows(head->k, head->row)),
           matrix_rows(p, n), false);
    for (int i = 0; i < n; i++) {
        softmax_row(p + (int64_t)i * n, i + 1, n, scale);
    }
    if (head->dropout.p > 0) {
        weights = head->scratch;
        drop(head, dropout_mask(head), p, weights);
    }
    matmul(n, d, n, matrix_rows(weights, n), matrix_rows(head->v, head->row),
           matrix_rows(o, head->out_row), false);
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

void standard_backward(const standard_head *head, const real *d_o, real *dq, real *dk, real *dv)
{
    int n = head->length, d = head->dim;
    const uint8_t *keep = NULL;
    const real *weights = head->probabilities;
    real *ds = head->scratch;
    if (head->dropout.p > 0) {
        keep = dropout_mask(head);
        drop(head, keep, head->probabilities, ds);
        weights = ds;
    }
    matrix square = matrix_rows(ds, n), out = matrix_rows(d_o, head->out_row);
    matmul(n, d, n, transposed(matrix_rows(weights, n)), out, matrix_rows(dv, head->row), false);
    matmul(n, n, d, out, transposed(matrix_rows(head->v, head->row)), square, false);
    if (keep != NULL) {
        drop(head, keep, ds, ds);
    }
    softmax_backward(n, head->probabilities, ds, 1 / sqrt((real)d));
    matmul(n, d, n, square, matrix_rows(head->k, head->row), matrix_rows(dq, head->row), false);
    matmul(n, d, n, transposed(square), matrix_rows(head->q, head->row), matrix_rows(dk, head->row),
           false);
}
