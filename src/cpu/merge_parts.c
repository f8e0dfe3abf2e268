/*
 * merge_parts.c: results over disjoint key ranges combined, in double precision.
 */
#include "cpu/merge_parts.h"
#include "core/half.h"
#include "cpu/backend.h"
#include "cpu/machine/tasks.h"
#include <math.h>

double attn_part_lse(const attn_merge_args *a, int64_t part, int64_t b, int64_t i, int64_t h)
{
    const attn_tensor *t = &a->part_lse[part];
    return attn_element_to_f64(attn_at(t, b, i, h, 0), t->dtype);
}

double attn_merged_lse(const attn_merge_args *a, int64_t b, int64_t i, int64_t h)
{
    double top = -INFINITY, sum = 0;
    for (int64_t part = 0; part < a->parts; part++) {
        double x = attn_part_lse(a, part, b, i, h);
        top = x > top || x != x ? x : top;
    }
    for (int64_t part = 0; part < a->parts && top > -INFINITY; part++) {
        sum += exp(attn_part_lse(a, part, b, i, h) - top);
    }
    return top + log(sum);
}

enum { CHUNK = 64 }; /* columns summed at once */

static void merge_columns(const attn_merge_args *a, double lse, int64_t b, int64_t i, int64_t h,
                          int64_t c0, int64_t n)
{
    double sum[CHUNK] = {0};
    for (int64_t part = 0; part < a->parts; part++) {
        const attn_tensor *o = &a->part_o[part];
        double x = attn_part_lse(a, part, b, i, h), weight = exp(x - lse);
        for (int64_t c = 0; c < n && x != -INFINITY; c++) {
            sum[c] += weight * attn_element_to_f64(attn_at(o, b, i, h, c0 + c), o->dtype);
        }
    }
    for (int64_t c = 0; c < n; c++) {
        attn_element_from_f64(attn_at(&a->o, b, i, h, c0 + c), a->o.dtype, sum[c]);
    }
}

static void merge_row(const attn_merge_args *a, int64_t b, int64_t i, int64_t h)
{
    double lse = attn_merged_lse(a, b, i, h);
    for (int64_t c = 0, dv = a->o.shape[3]; c < dv; c += CHUNK) {
        merge_columns(a, lse, b, i, h, c, dv - c < CHUNK ? dv - c : CHUNK);
    }
    if (a->lse.data) {
        attn_element_from_f64(attn_at(&a->lse, b, i, h, 0), a->lse.dtype, lse);
    }
}

static void merge_task(const void *arg, int64_t index, int32_t thread)
{
    const attn_merge_args *a = arg;
    (void)thread;
    int64_t b = index / a->o.shape[1], i = index % a->o.shape[1];
    for (int64_t h = 0; h < a->o.shape[2]; h++) {
        merge_row(a, b, i, h);
    }
}

void attn_cpu_merge(const void *device, const attn_merge_args *args)
{
    const attn_cpu_device *cpu = device;
    attn_tasks_run(&cpu->executor, args->o.shape[0] * args->o.shape[1], merge_task, args, NULL);
}
