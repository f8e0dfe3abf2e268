/*
 * standard.c: see standard.h. Compiled with -ffast-math like layers.c: the softmax is vectorised.
 */
#include "standard.h"

#include <tgmath.h>

#include "fail.h"
#include "matmul.h"
#include "threads.h"

/* A head: its rows in qkv are `row` apart, those of o and its gradient `out_row`. */
struct head {
    attn_context *context;
    int length, dim;
    const real *q, *k, *v;
    ptrdiff_t row, out_row, out; /* out: its place in o */
    attention_dropout dropout;   /* offset: of this head */
    real *probabilities;
    void *scratch; /* of this thread */
};

/* One matrix of a thread, and one of bytes for dropout; a multiple of a cache line. */
static uint64_t thread_bytes(int length, double dropout_p)
{
    return ((uint64_t)length * (uint64_t)length * (sizeof(real) + (dropout_p > 0)) + 63) / 64 * 64;
}

uint64_t standard_scratch_bytes(attention_shape shape, double dropout_p)
{
    return (uint64_t)threads_count() * thread_bytes(shape.length, dropout_p);
}

/* Head n of batch * heads. */
static struct head head_of(const standard_heads *all, int n)
{
    const attention_shape s = all->shape;
    const int64_t width = (int64_t)s.heads * s.dim, sequence = n / s.heads * s.length;
    const real *q = all->qkv + sequence * 3 * width + (int64_t)(n % s.heads) * s.dim;
    return (struct head){
        .context = all->context,
        .length = s.length,
        .dim = s.dim,
        .q = q,
        .k = q + width,
        .v = q + 2 * width,
        .row = 3 * width,
        .out_row = width,
        .out = sequence * width + (int64_t)(n % s.heads) * s.dim,
        .dropout = {all->dropout.p, all->dropout.seed, all->dropout.offset + (uint64_t)n},
        .probabilities = all->probabilities + (int64_t)n * s.length * s.length,
        .scratch = (char *)all->scratch +
                   (uint64_t)threads_self() * thread_bytes(s.length, all->dropout.p),
    };
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
static const uint8_t *dropout_mask(const struct head *head)
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
static void drop(const struct head *head, const uint8_t *keep, const real *from, real *to)
{
    real scale = head->dropout.p < 1 ? (real)(1 / (1 - head->dropout.p)) : 0;
    for (int64_t i = 0; i < (int64_t)head->length * head->length; i++) {
        to[i] = keep[i] ? from[i] * scale : 0;
    }
}

static void head_forward(const struct head *head, real *o)
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

static void head_backward(const struct head *head, const real *d_o, real *dq, real *dk, real *dv)
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

void standard_forward(const standard_heads *heads, real *o)
{
#pragma omp parallel for schedule(dynamic)
    for (int n = 0; n < heads->shape.batch * heads->shape.heads; n++) {
        struct head one = head_of(heads, n);
        head_forward(&one, o + one.out);
    }
}

void standard_backward(const standard_heads *heads, const real *d_o, real *d_qkv)
{
#pragma omp parallel for schedule(dynamic)
    for (int n = 0; n < heads->shape.batch * heads->shape.heads; n++) {
        struct head one = head_of(heads, n);
        real *dq = d_qkv + (one.q - heads->qkv);
        head_backward(&one, d_o + one.out, dq, dq + one.out_row, dq + 2 * one.out_row);
    }
}
