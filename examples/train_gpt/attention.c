/*
 * attention.c: see attention.h. The calls of libattn are forward_args() to libattn_backward(): q, k
 * and v are views of one tensor, and so are their gradients.
 */
#include "attention.h"

#include <stdlib.h>
#include <time.h>

#include "fail.h"
#include "standard.h"
#include "threads.h"

const char *const attention_kind_name[2] = {"libattn", "standard"};

static uint64_t kept_bytes(enum attention_kind kind, attention_shape s)
{
    uint64_t rows = (uint64_t)s.batch * (uint64_t)s.heads * (uint64_t)s.length;
    return rows * sizeof(real) * (kind == ATTENTION_LIBATTN ? 1 : (uint64_t)s.length);
}

attention *attention_new(enum attention_kind kind, int layers, attention_shape most)
{
    attention *a = allocate(1, sizeof *a);
    *a = (attention){.kind = kind, .most = most, .layers = layers, .context = threads_context()};
    a->kept = allocate((size_t)layers, sizeof *a->kept);
    for (int i = 0; i < layers; i++) {
        a->kept[i] = allocate(1, kept_bytes(kind, most));
    }
    return a;
}

void attention_delete(attention *a)
{
    for (int i = 0; i < a->layers; i++) {
        free(a->kept[i]);
    }
    free(a->kept);
    free(a->scratch);
    attn_context_destroy(a->context);
    free(a);
}

uint64_t attention_bytes(const attention *a)
{
    return (uint64_t)a->layers * kept_bytes(a->kind, a->most) + a->scratch_bytes;
}

/* Makes room; old contents are lost. */
static void reserve(attention *a, uint64_t bytes)
{
    if (bytes > a->scratch_bytes) {
        free(a->scratch);
        a->scratch = allocate(1, bytes);
        a->scratch_bytes = bytes;
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- libattn --------------------------------------------------------------------------------- */

/* part 0, 1, 2: q, k, v. */
static attn_tensor part_of(attention_shape s, const real *qkv, int part)
{
    attn_tensor t = attn_tensor_bshd(qkv + part * s.heads * s.dim, REAL_DTYPE, s.batch, s.length,
                                     s.heads, s.dim);
    t.stride[0] *= 3, t.stride[1] *= 3;
    return t;
}

static attn_tensor rows_of(attention_shape s, const real *rows, int dim)
{
    return attn_tensor_bshd(rows, REAL_DTYPE, s.batch, s.length, s.heads, dim);
}

static void check(attn_status status, const char *call)
{
    if (status != ATTN_OK) {
        fail(EXIT_INTERNAL, "%s: %s", call, attn_last_error());
    }
}

/* Arguments of the forward pass, for both passes. */
static attn_forward_args forward_args(attention_shape s, attention_dropout dropout, const real *qkv,
                                      const real *o, const real *lse)
{
    return (attn_forward_args){
        .struct_size = sizeof(attn_forward_args),
        .q = part_of(s, qkv, 0),
        .k = part_of(s, qkv, 1),
        .v = part_of(s, qkv, 2),
        .o = rows_of(s, o, s.dim),
        .lse = rows_of(s, lse, 1),
        .flags = ATTN_CAUSAL,
        .dropout_p = dropout.p,
        .dropout_seed = dropout.seed,
        .dropout_offset = dropout.offset,
    };
}

static void libattn_forward(attention *a, real *lse, attention_shape s, attention_dropout dropout,
                            const real *qkv, real *o)
{
    attn_forward_args args = forward_args(s, dropout, qkv, o, lse);
    uint64_t bytes;
    check(attn_forward_workspace(a->context, &args, &bytes), "attn_forward_workspace");
    reserve(a, bytes);
    args.workspace = a->scratch, args.workspace_bytes = a->scratch_bytes;
    check(attn_forward(a->context, &args), "attn_forward");
}

static void libattn_backward(attention *a, const real *lse, attention_shape s,
                             attention_dropout dropout, const real *qkv, const real *o,
                             const real *d_o, real *d_qkv)
{
    const attn_forward_args forward = forward_args(s, dropout, qkv, o, lse);
    attn_backward_args args = {
        .struct_size = sizeof args,
        .forward = &forward,
        .d_o = rows_of(s, d_o, s.dim),
        .dq = part_of(s, d_qkv, 0),
        .dk = part_of(s, d_qkv, 1),
        .dv = part_of(s, d_qkv, 2),
    };
    uint64_t bytes;
    check(attn_backward_workspace(a->context, &args, &bytes), "attn_backward_workspace");
    reserve(a, bytes);
    args.workspace = a->scratch, args.workspace_bytes = a->scratch_bytes;
    check(attn_backward(a->context, &args), "attn_backward");
}

/* ---- Standard -------------------------------------------------------------------------------- */

/* Head n of batch * heads. */
static standard_head head_of(const attention *a, const real *probabilities, attention_shape s,
                             attention_dropout dropout, const real *qkv, int n)
{
    int64_t width = (int64_t)s.heads * s.dim, square = (int64_t)s.length * s.length;
    const real *q = qkv + n / s.heads * s.length * 3 * width + (int64_t)(n % s.heads) * s.dim;
    return (standard_head){
        .context = a->context,
        .length = s.length,
        .dim = s.dim,
        .q = q,
        .k = q + width,
        .v = q + 2 * width,
        .row = 3 * width,
        .out_row = width,
        .dropout = {dropout.p, dropout.seed, dropout.offset + (uint64_t)n},
        .probabilities = (real *)probabilities + n * square,
        .scratch = (char *)a->scratch +
                   (uint64_t)threads_self() * standard_scratch_bytes(s.length, dropout.p),
    };
}

/* The place of head n in rows of o. */
static int64_t out_at(attention_shape s, int n)
{
    return ((int64_t)(n / s.heads) * s.length * s.heads + n % s.heads) * s.dim;
}

static void all_standard_forward(attention *a, real *probabilities, attention_shape s,
                                 attention_dropout dropout, const real *qkv, real *o)
{
    reserve(a, (uint64_t)threads_count() * standard_scratch_bytes(s.length, dropout.p));
#pragma omp parallel for schedule(dynamic)
    for (int n = 0; n < s.batch * s.heads; n++) {
        standard_head head = head_of(a, probabilities, s, dropout, qkv, n);
        standard_forward(&head, o + out_at(s, n));
    }
}

static void all_standard_backward(attention *a, const real *probabilities, attention_shape s,
                                  attention_dropout dropout, const real *qkv, const real *d_o,
                                  real *d_qkv)
{
    reserve(a, (uint64_t)threads_count() * standard_scratch_bytes(s.length, dropout.p));
#pragma omp parallel for schedule(dynamic)
    for (int n = 0; n < s.batch * s.heads; n++) {
        standard_head head = head_of(a, probabilities, s, dropout, qkv, n);
        real *dq = d_qkv + (head.q - qkv);
        standard_backward(&head, d_o + out_at(s, n), dq, dq + head.out_row, dq + 2 * head.out_row);
    }
}

/* ---- Either ---------------------------------------------------------------------------------- */

void attention_forward(attention *a, int layer, attention_shape shape, attention_dropout dropout,
                       const real *qkv, real *o)
{
    double start = now();
    if (a->kind == ATTENTION_LIBATTN) {
        libattn_forward(a, a->kept[layer], shape, dropout, qkv, o);
    } else {
        all_standard_forward(a, a->kept[layer], shape, dropout, qkv, o);
    }
    a->seconds += now() - start;
}

void attention_backward(attention *a, int layer, attention_shape shape, attention_dropout dropout,
                        const real *qkv, const real *o, const real *d_o, real *d_qkv)
{
    double start = now();
    if (a->kind == ATTENTION_LIBATTN) {
        libattn_backward(a, a->kept[layer], shape, dropout, qkv, o, d_o, d_qkv);
    } else {
        all_standard_backward(a, a->kept[layer], shape, dropout, qkv, d_o, d_qkv);
    }
    a->seconds += now() - start;
}
