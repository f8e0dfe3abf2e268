/*
 * attention.c: see attention.h. The calls of libattn are forward_args() to libattn_backward(): q, k
 * and v are views of one tensor, and so are their gradients.
 */
#include "attention.h"

#include <stdlib.h>
#include <time.h>

#include "fail.h"

const char *const attention_kind_name[2] = {"libattn", "standard"};

static uint64_t kept_bytes(enum attention_kind kind, attention_shape shape)
{
    uint64_t rows = (uint64_t)shape.batch * (uint64_t)shape.heads * (uint64_t)shape.length;
    return rows * sizeof(real) * (kind == ATTENTION_LIBATTN ? 1 : (uint64_t)shape.length);
}

gpt_attention *attention_new(const device *on, enum attention_kind kind, int layers,
                             attention_shape most)
{
    gpt_attention *attention = allocate(1, sizeof *attention);
    *attention = (gpt_attention){
        .on = on, .kind = kind, .most = most, .layers = layers, .context = on->context()};
    attention->kept = allocate((size_t)layers, sizeof *attention->kept);
    for (int i = 0; i < layers; i++) {
        attention->kept[i] = on->allocate(1, kept_bytes(kind, most));
    }
    return attention;
}

void attention_delete(gpt_attention *attention)
{
    for (int i = 0; i < attention->layers; i++) {
        attention->on->release(attention->kept[i]);
    }
    free(attention->kept);
    attention->on->release(attention->scratch);
    attn_context_destroy(attention->context);
    free(attention);
}

uint64_t attention_bytes(const gpt_attention *attention)
{
    return (uint64_t)attention->layers * kept_bytes(attention->kind, attention->most) +
           attention->scratch_bytes;
}

static void reserve_scratch(gpt_attention *attention, uint64_t bytes)
{
    if (bytes > attention->scratch_bytes) {
        attention->on->release(attention->scratch);
        attention->scratch = attention->on->allocate(1, bytes);
        attention->scratch_bytes = bytes;
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- libattn --------------------------------------------------------------------------------- */

attn_tensor attention_part(attention_shape shape, const real *qkv, int part)
{
    attn_tensor t = attn_tensor_bshd(qkv + part * shape.heads * shape.dim, REAL_DTYPE, shape.batch,
                                     shape.length, shape.heads, shape.dim);
    t.stride[0] *= 3, t.stride[1] *= 3;
    return t;
}

attn_tensor attention_rows(attention_shape shape, const real *rows, int dim)
{
    return attn_tensor_bshd(rows, REAL_DTYPE, shape.batch, shape.length, shape.heads, dim);
}

void attention_check(attn_status status, const char *call)
{
    if (status != ATTN_OK) {
        fail(EXIT_INTERNAL, "%s: %s", call, attn_last_error());
    }
}

/* Arguments of the forward pass, for both passes. */
static attn_forward_args forward_args(attention_shape shape, attention_dropout dropout,
                                      const real *qkv, const real *o, const real *lse)
{
    return (attn_forward_args){
        .struct_size = sizeof(attn_forward_args),
        .q = attention_part(shape, qkv, 0),
        .k = attention_part(shape, qkv, 1),
        .v = attention_part(shape, qkv, 2),
        .o = attention_rows(shape, o, shape.dim),
        .lse = attention_rows(shape, lse, 1),
        .flags = ATTN_CAUSAL,
        .dropout_p = dropout.p,
        .dropout_seed = dropout.seed,
        .dropout_offset = dropout.offset,
    };
}

static void libattn_forward(gpt_attention *attention, real *lse, attention_shape shape,
                            attention_dropout dropout, const real *qkv, real *o)
{
    attn_forward_args args = forward_args(shape, dropout, qkv, o, lse);
    uint64_t bytes;
    attention_check(attn_forward_workspace(attention->context, &args, &bytes),
                    "attn_forward_workspace");
    reserve_scratch(attention, bytes);
    args.workspace = attention->scratch, args.workspace_bytes = attention->scratch_bytes;
    attention_check(attn_forward(attention->context, &args), "attn_forward");
}

static void libattn_backward(gpt_attention *attention, const real *lse, attention_shape shape,
                             attention_dropout dropout, const real *qkv, const real *o,
                             const real *d_o, real *d_qkv)
{
    const attn_forward_args forward = forward_args(shape, dropout, qkv, o, lse);
    attn_backward_args args = {
        .struct_size = sizeof args,
        .forward = &forward,
        .d_o = attention_rows(shape, d_o, shape.dim),
        .dq = attention_part(shape, d_qkv, 0),
        .dk = attention_part(shape, d_qkv, 1),
        .dv = attention_part(shape, d_qkv, 2),
    };
    uint64_t bytes;
    attention_check(attn_backward_workspace(attention->context, &args, &bytes),
                    "attn_backward_workspace");
    reserve_scratch(attention, bytes);
    args.workspace = attention->scratch, args.workspace_bytes = attention->scratch_bytes;
    attention_check(attn_backward(attention->context, &args), "attn_backward");
}

/* ---- Standard -------------------------------------------------------------------------------- */

static standard_heads heads_of(gpt_attention *attention, real *probabilities, attention_shape shape,
                               attention_dropout dropout, const real *qkv)
{
    reserve_scratch(attention, attention->on->standard_scratch_bytes(shape, dropout.p));
    return (standard_heads){attention->context, shape, dropout, qkv, probabilities,
                            attention->scratch};
}

/* ---- Either ---------------------------------------------------------------------------------- */

void attention_forward(gpt_attention *attention, int layer, attention_shape shape,
                       attention_dropout dropout, const real *qkv, real *o)
{
    double start = now();
    if (attention->kind == ATTENTION_LIBATTN) {
        libattn_forward(attention, attention->kept[layer], shape, dropout, qkv, o);
    } else {
        const standard_heads heads =
            heads_of(attention, attention->kept[layer], shape, dropout, qkv);
        attention->on->standard_forward(&heads, o);
    }
    attention->seconds += now() - start;
}

void attention_backward(gpt_attention *attention, int layer, attention_shape shape,
                        attention_dropout dropout, const real *qkv, const real *o, const real *d_o,
                        real *d_qkv)
{
    double start = now();
    if (attention->kind == ATTENTION_LIBATTN) {
        libattn_backward(attention, attention->kept[layer], shape, dropout, qkv, o, d_o, d_qkv);
    } else {
        const standard_heads heads =
            heads_of(attention, attention->kept[layer], shape, dropout, qkv);
        attention->on->standard_backward(&heads, d_o, d_qkv);
    }
    attention->seconds += now() - start;
}
