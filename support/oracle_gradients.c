/*
 * oracle_gradients.c: the gradients of attn.h, sequence by sequence and row by row, from the
 * formula: O, LSE and delta are computed anew. The arithmetic of a row is in oracle_scores.h and
 * oracle_grad_row.h, in double or long double.
 */
#include "oracle.h"

#include <stdlib.h>
#include <string.h>
#include <tgmath.h>

#include "oracle_sequence.h"

struct gradients {
    const attn_backward_args *args;
    const attn_forward_args *forward; /* of args */
    bool wide;                        /* REAL is long double */
    /* sums as in oracle_gradients, of REAL */
    void *of[ORACLE_GRADIENTS], *size[ORACLE_GRADIENTS], *loss[ORACLE_GRADIENTS];
    double *squares; /* of oracle_gradients */
};

/* Flat index of a position in a tensor that is broadcast along axes of extent 1. */
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

static void *zeros(size_t count, bool wide)
{
    void *room = calloc(count + 1, wide ? sizeof(long double) : sizeof(double));
    if (room == NULL) {
        abort(); /* no test can go on without its judge */
    }
    return room;
}

static void run_head(const struct gradients *g, const struct sequence *sequence, int64_t hk)
{
    int64_t group = g->forward->q.shape[2] / g->forward->k.shape[2];
    void *panel = zeros(
        (size_t)(sequence->nk * (sequence->d + sequence->dv + 4) + sequence->d + sequence->dv),
        g->wide);
    g->wide ? load_long(sequence, hk, panel) : load_double(sequence, hk, panel);
    for (int64_t n = 0; n < sequence->rows * group; n++) {
        int64_t i = n / group, h = hk * group + n % group;
        g->wide ? grad_row_long(g, sequence, i, h, panel)
                : grad_row_double(g, sequence, i, h, panel);
    }
    free(panel);
}

static void run(const struct gradients *g)
{
    const attn_forward_args *args = g->forward;
    for (int64_t b = 0; b < sequences_of(args); b++) {
        struct sequence sequence = any_sequence_of(args, NULL, b);
        for (int64_t hk = 0; hk < args->k.shape[2]; hk++) {
            run_head(g, &sequence, hk);
        }
    }
}

static size_t elements(const attn_tensor *t)
{
    return (size_t)(t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]);
}

/* Replaces sums of REAL by sums of long double. */
static long double *widened(void *sums, size_t count, bool wide)
{
    long double *out = zeros(count, true);
    wide ? copy_long(sums, out, count) : copy_double(sums, out, count);
    free(sums);
    return out;
}

void oracle_backward(const attn_backward_args *args, oracle_gradients *out)
{
    const attn_forward_args *forward = args->forward;
    const attn_tensor *shapes[ORACLE_GRADIENTS] = {
        &forward->q,    &forward->k, &forward->v, &forward->bias, &forward->alibi_slopes,
        &forward->sinks};
    struct gradients g = {.args = args, .forward = forward, .wide = forward->q.dtype == ATTN_F64};
    memset(out, 0, sizeof *out);
    g.squares = out->squares;
    for (int n = 0; n < ORACLE_GRADIENTS; n++) {
        if (shapes[n]->data != NULL) {
            g.of[n] = zeros(elements(shapes[n]), g.wide);
            g.size[n] = zeros(elements(shapes[n]), g.wide);
            g.loss[n] = zeros(elements(shapes[n]), g.wide);
        }
    }
    run(&g);
    for (int n = 0; n < ORACLE_GRADIENTS; n++) {
        if (shapes[n]->data != NULL) {
            out->of[n] = widened(g.of[n], elements(shapes[n]), g.wide);
            out->size[n] = widened(g.size[n], elements(shapes[n]), g.wide);
            out->loss[n] = widened(g.loss[n], elements(shapes[n]), g.wide);
        }
    }
}

void oracle_gradients_free(oracle_gradients *g)
{
    for (int n = 0; n < ORACLE_GRADIENTS; n++) {
        free(g->of[n]);
        free(g->size[n]);
        free(g->loss[n]);
    }
    memset(g, 0, sizeof *g);
}
