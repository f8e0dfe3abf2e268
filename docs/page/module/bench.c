/*
 * bench.c: attn_forward beside forms of the ladder (examples/ladder) on one head of f32, a call at
 * a time: JavaScript holds the watch.
 */
#include "inputs.h"
#include "ladder.h"
#include "page.h"
#include "problem.h"

#include <attn/attn.h>
#include <math.h>
#include <stdlib.h>

enum { FORMS = 3 };

static struct bench {
    float *memory;
    float *o[FORMS];
    attn_forward_args args;
    ladder_head head;
    ladder_traffic traffic;
    attn_context *context;
} bench;

static attn_tensor tensor_of(const float *x, int64_t rows, int64_t columns)
{
    return attn_tensor_bshd(x, ATTN_F32, 1, rows, 1, columns);
}

static float *fill(float *x, int64_t count, int tensor)
{
    for (int64_t i = 0; i < count; i++) {
        x[i] = (float)inputs_value(INPUTS_NORMAL, 1, tensor, i);
    }
    return x + count;
}

/* Makes the inputs; false: no memory. */
int PAGE_EXPORT(page_bench_open)(int n, int d, int causal)
{
    const int64_t area = (int64_t)n * d;
    attn_context_destroy(bench.context);
    free(bench.memory);
    bench = (struct bench){
        .memory = malloc((size_t)((3 + FORMS) * area + (int64_t)n * n) * sizeof(float))};
    if (bench.memory == NULL || attn_context_create(NULL, &bench.context) != ATTN_OK) {
        return 0;
    }
    float *q = bench.memory, *k = fill(q, area, INPUTS_Q), *v = fill(k, area, INPUTS_K),
          *next = fill(v, area, INPUTS_V);
    for (int form = 0; form < FORMS; form++, next += area) {
        bench.o[form] = next;
    }
    bench.head = (ladder_head){.nq = n,
                               .nk = n,
                               .d = d,
                               .dv = d,
                               .q = q,
                               .k = k,
                               .v = v,
                               .scale = 1 / sqrtf((float)d),
                               .causal = causal,
                               .scores = next,
                               .traffic = &bench.traffic};
    bench.args = (attn_forward_args){.struct_size = sizeof bench.args,
                                     .q = tensor_of(q, n, d),
                                     .k = tensor_of(k, n, d),
                                     .v = tensor_of(v, n, d),
                                     .o = tensor_of(bench.o[0], n, d),
                                     .flags = causal ? ATTN_CAUSAL : 0};
    return 1;
}

/* Makes one call: 0 attn_forward, 1 the safe softmax over the whole matrix, 2 tiles without
 * vectors. */
int PAGE_EXPORT(page_bench_run)(int form)
{
    bench.traffic = (ladder_traffic){0, 0};
    bench.head.o = bench.o[form];
    switch (form) {
    case 0:
        return attn_forward(bench.context, &bench.args) == ATTN_OK;
    case 1:
        ladder_safe(&bench.head);
        return 1;
    default:
        ladder_tiles(&bench.head);
        return 1;
    }
}

/* The largest difference between the results of a form and of attn_forward. */
double PAGE_EXPORT(page_bench_distance)(int form)
{
    double largest = 0;
    for (int64_t i = 0; i < bench.head.nq * bench.head.d; i++) {
        const double x = fabs((double)bench.o[form][i] - (double)bench.o[0][i]);
        largest = x > largest ? x : largest;
    }
    return largest;
}
