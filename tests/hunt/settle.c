/*
 * settle.c: see settle.h.
 */
#include "settle.h"
#include "grad_errors.h"
#include "inputs.h"
#include "oracle.h"

#include <math.h>
#include <stdlib.h>

/* Elements of a tensor in the order of their index. */
static void find(const attn_tensor *t, int64_t n, int64_t at[4])
{
    for (int axis = 3; axis >= 0; axis--) {
        at[axis] = n % t->shape[axis];
        n /= t->shape[axis];
    }
}

static int64_t count(const attn_tensor *t)
{
    return t->data ? t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3] : 0;
}

static void settle(const attn_tensor *t, const double *exact, bool rows)
{
    for (int64_t n = 0; n < count(t); n++) {
        int64_t at[4];
        find(t, n, at);
        const double got = oracle_element(t, at[0], at[1], at[2], at[3]);
        const bool empty = rows && (got == -(double)INFINITY || exact[n] == -(double)INFINITY);
        if (!empty && !isfinite(got) && !isfinite(exact[n])) {
            inputs_store(t, at[0], at[1], at[2], at[3], exact[n]);
        }
    }
}

void settle_outputs(const attn_forward_args *args)
{
    const int64_t rows = args->o.shape[0] * args->o.shape[1] * args->o.shape[2],
                  columns = args->o.shape[3];
    double *o = calloc((size_t)(rows * (columns + 2) + 1), sizeof *o);
    if (o == NULL) {
        return;
    }
    const oracle_result exact = {
        .o = o, .lse = o + rows * columns, .row_max = o + rows * (columns + 1)};
    oracle_forward(args, &exact, NULL, 0);
    settle(&args->o, exact.o, false);
    settle(&args->lse, exact.lse, true);
    settle(&args->row_max, exact.row_max, true);
    free(o);
}

void settle_gradients(const attn_backward_args *args)
{
    const attn_tensor *got[ORACLE_GRADIENTS];
    oracle_gradients exact;
    oracle_backward(args, &exact);
    grad_errors_tensors(args, got);
    for (int n = 0; n < ORACLE_GRADIENTS; n++) {
        for (int64_t i = 0; i < count(got[n]); i++) {
            const double value = (double)exact.of[n][i];
            int64_t at[4];
            find(got[n], i, at);
            if (!isfinite(value)) {
                inputs_store(got[n], at[0], at[1], at[2], at[3], value);
            }
        }
    }
    oracle_gradients_free(&exact);
}
