/*
 * merge_parts.c: results over disjoint key ranges combined as nodes of a tree whose leaves are the
 * parts in order, in the arithmetic of the forward pass's own nodes (core/segment.h): parts that
 * are nodes of one call's sum give the bits of that call.
 */
#include "cpu/merge_parts.h"
#include "core/half.h"
#include "core/segment.h"
#include "cpu/backend.h"
#include "cpu/machine/tasks.h"
#include <math.h>

double attn_part_lse(const attn_merge_args *args, int64_t part, int64_t b, int64_t i, int64_t h)
{
    const attn_tensor *tensor = &args->part_lse[part];
    return attn_element_to_f64(attn_at(tensor, b, i, h, 0), tensor->dtype);
}

/* Parts first .. last-1 begin a node at `first`: the first part of its right half. */
static int64_t right_half(int64_t first, int64_t last)
{
    int64_t span = 1;
    while (span < last - first - span) {
        span *= 2;
    }
    return first + span;
}

/* A row of the output, and whether its arithmetic is f64's. */
typedef struct merge_row {
    const attn_merge_args *a;
    int64_t b, i, h;
    bool wide;
} merge_row;

static double node_lse(const merge_row *r, int64_t first, int64_t last)
{
    if (last - first == 1) {
        return attn_part_lse(r->a, first, r->b, r->i, r->h);
    }
    const int64_t middle = right_half(first, last);
    return attn_segment_join(node_lse(r, first, middle), 0, node_lse(r, middle, last), 0).lse;
}

double attn_merged_lse(const attn_merge_args *args, int64_t b, int64_t i, int64_t h)
{
    const merge_row row = {.a = args, .b = b, .i = i, .h = h};
    return node_lse(&row, 0, args->parts);
}

enum { CHUNK = 64 }; /* columns at once */

/* o[0 .. n-1] = columns from `column` on of parts first .. last-1; 0 without a visible key. The
 * logarithm of their sum. */
static double node_columns(const merge_row *r, int64_t first, int64_t last, int64_t column,
                           int64_t n, double *o)
{
    if (last - first == 1) {
        const attn_tensor *tensor = &r->a->part_o[first];
        const double lse = attn_part_lse(r->a, first, r->b, r->i, r->h);
        const char *from = attn_at(tensor, r->b, r->i, r->h, column);
        const int64_t step = attn_axis_step(tensor, 3);
        for (int64_t c = 0; c < n; c++) {
            o[c] = lse == -INFINITY ? 0 : attn_element_to_f64(from + c * step, tensor->dtype);
        }
        return lse;
    }
    double right[CHUNK];
    const int64_t middle = right_half(first, last);
    const double lse_a = node_columns(r, first, middle, column, n, o);
    const double lse_b = node_columns(r, middle, last, column, n, right);
    const attn_join join = attn_segment_join(lse_a, 0, lse_b, 0);
    const float a = (float)join.a, b = (float)join.b;
    for (int64_t c = 0; c < n; c++) {
        o[c] = r->wide ? fma(right[c], join.b, o[c] * join.a)
                       : (double)fmaf((float)right[c], b, (float)o[c] * a);
    }
    return join.lse;
}

static void merge_one(const merge_row *r)
{
    const attn_merge_args *args = r->a;
    double lse = 0, o[CHUNK];
    const int64_t step = attn_axis_step(&args->o, 3);
    for (int64_t c = 0, n; c < args->o.shape[3]; c += n) {
        n = args->o.shape[3] - c < CHUNK ? args->o.shape[3] - c : CHUNK;
        lse = node_columns(r, 0, args->parts, c, n, o);
        char *to = attn_at(&args->o, r->b, r->i, r->h, c);
        for (int64_t k = 0; k < n; k++) {
            attn_element_from_f64(to + k * step, args->o.dtype, o[k]);
        }
    }
    if (args->lse.data) {
        lse = args->o.shape[3] > 0 ? lse : node_lse(r, 0, args->parts);
        attn_element_from_f64(attn_at(&args->lse, r->b, r->i, r->h, 0), args->lse.dtype, lse);
    }
}

static void merge_task(const void *arg, int64_t index, int32_t thread)
{
    const attn_merge_args *args = arg;
    const int64_t rows = args->o.shape[1];
    merge_row row = {
        .a = args, .b = index / rows, .i = index % rows, .wide = args->o.dtype == ATTN_F64};
    (void)thread;
    for (int64_t part = 0; part < args->parts; part++) {
        row.wide = row.wide || args->part_o[part].dtype == ATTN_F64;
    }
    for (row.h = 0; row.h < args->o.shape[2]; row.h++) {
        merge_one(&row);
    }
}

attn_status attn_cpu_merge(const void *device, const attn_merge_args *args)
{
    const attn_cpu_device *cpu = device;
    attn_tasks_run(&cpu->executor, args->o.shape[0] * args->o.shape[1], merge_task, args, NULL);
    return ATTN_OK;
}
