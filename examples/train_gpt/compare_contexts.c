/*
 * compare_contexts.c: attention alone, forward and backward, one sequence with the model's heads,
 * at growing length. The two ways take turns, and the least time of each counts.
 */
#include "compare.h"

#include <stdlib.h>

#include "fail.h"
#include "random.h"
#include "train.h"

enum { FIRST = 256, LAST = 16384, MOST_ROUNDS = 9 };
static const double ENOUGH_SECONDS = 1; /* of rounds at one length */

/* One sequence's rows. */
struct rows {
    real *qkv, *o, *d_o, *d_qkv;
};

static real *normal_numbers(const device *on, size_t count, uint64_t seed)
{
    real *x = allocate(count, sizeof *x), *there = on->allocate(count, sizeof *x);
    for (size_t i = 0; i < count; i++) {
        x[i] = (real)random_normal(&seed);
    }
    on->put(there, x, count * sizeof *x);
    free(x);
    return there;
}

static double time_both_passes(gpt_attention *attention, const struct rows *r)
{
    const attention_dropout none = {0};
    double start = seconds_now();
    attention_forward(attention, 0, attention->most, none, r->qkv, r->o);
    attention_backward(attention, 0, attention->most, none, r->qkv, r->o, r->d_o, r->d_qkv);
    if (attention->on->wait != NULL) {
        attention->on->wait();
    }
    return seconds_now() - start;
}

/* Whether there is memory for standard attention: the probabilities of all heads, and scratch. */
static bool has_memory_for(const device *on, attention_shape shape)
{
    double square = (double)shape.length * shape.length * sizeof(real);
    double wanted = square * shape.heads + (double)on->standard_scratch_bytes(shape, 0);
    return wanted < 0.7 * on->free_bytes();
}

static void measure(const device *on, attention_shape shape, const struct rows *r, context_row *row)
{
    gpt_attention *a[2] = {attention_new(on, ATTENTION_LIBATTN, 1, shape), NULL};
    if (has_memory_for(on, shape)) {
        a[1] = attention_new(on, ATTENTION_STANDARD, 1, shape);
    }
    double start = seconds_now();
    for (int n = 0; n < MOST_ROUNDS && (n == 0 || seconds_now() - start < ENOUGH_SECONDS); n++) {
        for (int kind = 0; kind < 2; kind++) {
            double seconds = a[kind] == NULL ? -1 : time_both_passes(a[kind], r);
            row->seconds[kind] =
                n == 0 || seconds < row->seconds[kind] ? seconds : row->seconds[kind];
        }
    }
    for (int kind = 0; kind < 2; kind++) {
        if (a[kind] != NULL) {
            row->bytes[kind] = (double)attention_bytes(a[kind]);
            attention_delete(a[kind]);
        }
    }
}

static void print_row(const context_row *r, FILE *out)
{
    const double mib = 1 << 20;
    fprintf(out, "%7d  %9.2f", r->length, r->seconds[0] * 1e3);
    if (r->seconds[1] < 0) {
        fprintf(out, "  %9s  %6s  %10.2f  %10s\n", "-", "", r->bytes[0] / mib, "too much");
    } else {
        fprintf(out, "  %9.2f  %6.2f  %10.2f  %10.2f  %6.0f\n", r->seconds[1] * 1e3,
                r->seconds[1] / r->seconds[0], r->bytes[0] / mib, r->bytes[1] / mib,
                r->bytes[1] / r->bytes[0]);
    }
    fflush(out);
}

int compare_contexts(const options *o, context_row rows[MAX_CONTEXTS], FILE *out)
{
    const device *on = o->on;
    int count = 0;
    fprintf(out,
            "\nattention forward and backward, one sequence, %lld heads of %lld, causal\n"
            "              time, ms               memory, MiB\n"
            "context    libattn   standard  factor     libattn    standard  factor\n",
            (long long)o->config.heads, (long long)(o->config.width / o->config.heads));
    for (int length = FIRST; length <= LAST; length *= 2) {
        const attention_shape shape = {1, length, (int)o->config.heads,
                                       (int)(o->config.width / o->config.heads)};
        size_t numbers = (size_t)length * (size_t)o->config.width;
        struct rows r = {normal_numbers(on, 3 * numbers, 1), on->allocate(numbers, sizeof(real)),
                         normal_numbers(on, numbers, 2), on->allocate(3 * numbers, sizeof(real))};
        rows[count] = (context_row){.length = length};
        measure(on, shape, &r, &rows[count]);
        print_row(&rows[count++], out);
        on->release(r.qkv);
        on->release(r.o);
        on->release(r.d_o);
        on->release(r.d_qkv);
    }
    return count;
}
