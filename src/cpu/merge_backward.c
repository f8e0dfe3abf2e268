/*
 * merge_backward.c: gradients of parts from those of their merged result, in double precision.
 */
#include "core/half.h"
#include "cpu/backend.h"
#include "cpu/machine/tasks.h"
#include "cpu/merge_parts.h"
#include <math.h>

/* A row: dO and dLSE there are those of the merged result. */
typedef struct part_row {
    const attn_merge_backward_args *a;
    int64_t b, i, h;
    double lse;
} part_row;

static double element(const part_row *row, const attn_tensor *tensor, int64_t c)
{
    return attn_element_to_f64(attn_at(tensor, row->b, row->i, row->h, c), tensor->dtype);
}

static void store(const part_row *row, const attn_tensor *tensor, int64_t c, double x)
{
    attn_element_from_f64(attn_at(tensor, row->b, row->i, row->h, c), tensor->dtype, x);
}

/* Parts without a key have no influence, whatever their o, and gradients of 0. */
static bool is_empty(const part_row *row, int64_t part)
{
    return attn_part_lse(row->a->forward, part, row->b, row->i, row->h) == -INFINITY;
}

/* exp(lse_p - LSE) of a part that is not empty. */
static double weight(const part_row *row, int64_t part)
{
    return exp(attn_part_lse(row->a->forward, part, row->b, row->i, row->h) - row->lse);
}

/* dO.o_p */
static double product(const part_row *row, int64_t part)
{
    const attn_tensor *o = &row->a->forward->part_o[part];
    double sum = 0;
    for (int64_t c = 0; c < o->shape[3]; c++) {
        sum += element(row, &row->a->d_o, c) * element(row, o, c);
    }
    return sum;
}

static void store_d_o(const part_row *row, int64_t part)
{
    const attn_tensor *d_o = &row->a->part_d_o[part];
    const bool empty = is_empty(row, part);
    const double w = empty ? 0 : weight(row, part);
    for (int64_t c = 0; c < d_o->shape[3]; c++) {
        store(row, d_o, c, empty ? 0 : w * element(row, &row->a->d_o, c));
    }
}

/* w_p (dO.o_p - dO.O + dLSE) of all parts, dO.O being the mean of dO.o_p. */
static void store_d_lse(const part_row *row)
{
    const attn_merge_backward_args *args = row->a;
    const double d_lse = args->d_lse.data ? element(row, &args->d_lse, 0) : 0;
    double mean = 0;
    for (int64_t part = 0; part < args->forward->parts; part++) {
        mean += is_empty(row, part) ? 0 : weight(row, part) * product(row, part);
    }
    for (int64_t part = 0; part < args->forward->parts; part++) {
        if (args->part_d_lse[part].data) {
            const bool empty = is_empty(row, part);
            store(row, &args->part_d_lse[part], 0,
                  empty ? 0 : weight(row, part) * (product(row, part) - mean + d_lse));
        }
    }
}

/* index: (batch, query). */
static void row_task(const void *arg, int64_t index, int32_t thread)
{
    const attn_merge_backward_args *args = arg;
    part_row row = {.a = args, .b = index / args->d_o.shape[1], .i = index % args->d_o.shape[1]};
    (void)thread;
    for (; row.h < args->d_o.shape[2]; row.h++) {
        row.lse = attn_merged_lse(args->forward, row.b, row.i, row.h);
        for (int64_t part = 0; args->part_d_o && part < args->forward->parts; part++) {
            if (args->part_d_o[part].data) {
                store_d_o(&row, part);
            }
        }
        if (args->part_d_lse) {
            store_d_lse(&row);
        }
    }
}

attn_status attn_cpu_merge_backward(const void *device, const attn_merge_backward_args *args)
{
    const attn_cpu_device *cpu = device;
    attn_tasks_run(&cpu->executor, args->d_o.shape[0] * args->d_o.shape[1], row_task, args, NULL);
    return ATTN_OK;
}
