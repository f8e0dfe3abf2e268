/*
 * merge_backward.c: gradients of parts from those of their merged result, in double precision.
 */
#include "core/half.h"
#include "cpu/backend.h"
#include "cpu/machine/tasks.h"
#include "cpu/merge_parts.h"
#include <math.h>

/* A row: dO and dLSE there are those of the merged result. */
typedef struct row {
    const attn_merge_backward_args *a;
    int64_t b, i, h;
    double lse;
} row;

static double element(const row *r, const attn_tensor *t, int64_t c)
{
    return attn_element_to_f64(attn_at(t, r->b, r->i, r->h, c), t->dtype);
}

static void store(const row *r, const attn_tensor *t, int64_t c, double x)
{
    attn_element_from_f64(attn_at(t, r->b, r->i, r->h, c), t->dtype, x);
}

/* Parts without a key have no influence, whatever their o, and gradients of 0. */
static bool is_empty(const row *r, int64_t part)
{
    return attn_part_lse(r->a->forward, part, r->b, r->i, r->h) == -INFINITY;
}

/* exp(lse_p - LSE) of a part that is not empty. */
static double weight(const row *r, int64_t part)
{
    return exp(attn_part_lse(r->a->forward, part, r->b, r->i, r->h) - r->lse);
}

/* dO.o_p */
static double product(const row *r, int64_t part)
{
    const attn_tensor *o = &r->a->forward->part_o[part];
    double sum = 0;
    for (int64_t c = 0; c < o->shape[3]; c++) {
        sum += element(r, &r->a->d_o, c) * element(r, o, c);
    }
    return sum;
}

static void store_d_o(const row *r, int64_t part)
{
    const attn_tensor *d_o = &r->a->part_d_o[part];
    const bool empty = is_empty(r, part);
    const double w = empty ? 0 : weight(r, part);
    for (int64_t c = 0; c < d_o->shape[3]; c++) {
        store(r, d_o, c, empty ? 0 : w * element(r, &r->a->d_o, c));
    }
}

/* w_p (dO.o_p - dO.O + dLSE) of all parts, dO.O being the mean of dO.o_p. */
static void store_d_lse(const row *r)
{
    const attn_merge_backward_args *a = r->a;
    const double d_lse = a->d_lse.data ? element(r, &a->d_lse, 0) : 0;
    double mean = 0;
    for (int64_t part = 0; part < a->forward->parts; part++) {
        mean += is_empty(r, part) ? 0 : weight(r, part) * product(r, part);
    }
    for (int64_t part = 0; part < a->forward->parts; part++) {
        if (a->part_d_lse[part].data) {
            const bool empty = is_empty(r, part);
            store(r, &a->part_d_lse[part], 0,
                  empty ? 0 : weight(r, part) * (product(r, part) - mean + d_lse));
        }
    }
}

/* index: (batch, query). */
static void row_task(const void *arg, int64_t index, int32_t thread)
{
    const attn_merge_backward_args *a = arg;
    row r = {.a = a, .b = index / a->d_o.shape[1], .i = index % a->d_o.shape[1]};
    (void)thread;
    for (; r.h < a->d_o.shape[2]; r.h++) {
        r.lse = attn_merged_lse(a->forward, r.b, r.i, r.h);
        for (int64_t part = 0; a->part_d_o && part < a->forward->parts; part++) {
            if (a->part_d_o[part].data) {
                store_d_o(&r, part);
            }
        }
        if (a->part_d_lse) {
            store_d_lse(&r);
        }
    }
}

void attn_cpu_merge_backward(const void *device, const attn_merge_backward_args *args)
{
    const attn_cpu_device *cpu = device;
    attn_tasks_run(&cpu->executor, args->d_o.shape[0] * args->d_o.shape[1], row_task, args, NULL);
}
