/*
 * oracle_gradients.c: the gradients of attn.h, sequence by sequence and row by row, from the formula: O, LSE and delta
 * are computed anew, every sum is kept in long double. The arithmetic of a row is oracle_scores.h and
 * oracle_grad_row.h.
 */
#include "oracle.h"

#include <stdlib.h>
#include <string.h>
#include <tgmath.h>

#include "oracle_sequence.h"

struct gradients {
    const attn_backward_args *args;
    oracle_gradients *out;
};

static void add(const struct gradients *g, enum oracle_gradient which, int64_t at, long double x, long double size)
{
    if (g->out->of[which] != NULL) {
        g->out->of[which][at] += x;
        g->out->size[which][at] += size;
    }
}

/* The flat index of a position in a tensor that is broadcast where its extent is 1. */
static int64_t place(const attn_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    const int64_t at[4] = {i0, i1, i2, i3};
    int64_t flat = 0;
    for (int a = 0; a < 4 && t->data != NULL; a++) {
        flat = flat * t->shape[a] + (t->shape[a] == 1 ? 0 : at[a]);
    }
    return flat;
}

#define REAL double
#define NAME(name) name##_double
#include "oracle_scores.h"
#include "oracle_grad_row.h"
#undef REAL
#undef NAME
#define REAL long double
#define NAME(name) name##_long
#include "oracle_scores.h"
#include "oracle_grad_row.h"

attn_forward_args oracle_forward_args(const attn_backward_args *a)
{
    attn_forward_args f = {.struct_size = sizeof f, .q = a->q, .k = a->k, .v = a->v, .o = a->o, .lse = a->lse};
    f.flags = a->flags, f.window_left = a->window_left, f.window_right = a->window_right;
    f.softmax_scale = a->softmax_scale, f.softcap = a->softcap;
    f.mask = a->mask, f.bias = a->bias, f.alibi_slopes = a->alibi_slopes, f.sinks = a->sinks;
    f.cu_seqlens_q = a->cu_seqlens_q, f.cu_seqlens_k = a->cu_seqlens_k;
    f.seqused_q = a->seqused_q, f.seqused_k = a->seqused_k;
    f.dropout_p = a->dropout_p, f.dropout_seed = a->dropout_seed, f.dropout_offset = a->dropout_offset;
    return f;
}

static void run_head(const struct gradients *g, const struct sequence *q, int64_t hk)
{
    int64_t group = g->args->q.shape[2] / g->args->k.shape[2];
    bool wide = g->args->q.dtype == ATTN_F64;
    size_t count = (size_t)(q->nk * (q->d + q->dv + 3) + 1);
    void *panel = calloc(count, wide ? sizeof(long double) : sizeof(double));
    if (panel == NULL) {
        abort(); /* without its judge a test cannot go on */
    }
    wide ? load_long(q, hk, panel) : load_double(q, hk, panel);
    for (int64_t n = 0; n < q->rows * group; n++) {
        int64_t i = n / group, h = hk * group + n % group;
        wide ? grad_row_long(g, q, i, h, panel) : grad_row_double(g, q, i, h, panel);
    }
    free(panel);
}

static void make(oracle_gradients *g, enum oracle_gradient which, const attn_tensor *t)
{
    size_t count = (size_t)(t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]) + 1;
    if (t->data != NULL) {
        g->of[which] = calloc(count, sizeof(long double));
        g->size[which] = calloc(count, sizeof(long double));
        if (g->of[which] == NULL || g->size[which] == NULL) {
            abort();
        }
    }
}

void oracle_backward(const attn_backward_args *args, oracle_gradients *out)
{
    const attn_forward_args forward = oracle_forward_args(args);
    const attn_tensor *shapes[ORACLE_GRADIENTS] = {&args->q,    &args->k, &args->v, &args->bias, &args->alibi_slopes,
                                                   &args->sinks};
    memset(out, 0, sizeof *out);
    for (int n = 0; n < ORACLE_GRADIENTS; n++) {
        make(out, (enum oracle_gradient)n, shapes[n]);
    }
    struct gradients g = {args, out};
    int64_t batch = args->cu_seqlens_q.data ? args->cu_seqlens_q.shape[0] - 1 : args->q.shape[0];
    for (int64_t b = 0; b < batch; b++) {
        struct sequence q = sequence_of(&forward, NULL, b);
        for (int64_t hk = 0; hk < args->k.shape[2]; hk++) {
            run_head(&g, &q, hk);
        }
    }
}

void oracle_gradients_free(oracle_gradients *g)
{
    for (int n = 0; n < ORACLE_GRADIENTS; n++) {
        free(g->of[n]);
        free(g->size[n]);
    }
    memset(g, 0, sizeof *g);
}
