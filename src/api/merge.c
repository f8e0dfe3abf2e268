/*
 * merge.c: combining results over disjoint key ranges (attn_merge). Memory-bound and in double
 * precision; one place for validation and arithmetic, since there is nothing to plan.
 */
#include "api/args.h"
#include "api/context.h"
#include "core/error.h"
#include "core/half.h"
#include "cpu/machine/host.h"
#include <math.h>

static attn_status bad_part(const char *name, int64_t part, const char *why)
{
    return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s[%lld] %s", name, (long long)part, why);
}

static bool same_rows(const attn_tensor *a, const attn_tensor *b)
{
    return a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1] && a->shape[2] == b->shape[2];
}

static attn_status check(const attn_merge_args *a)
{
    attn_status status = attn_check_tensor("o", &a->o, ATTN_FLOAT_TYPES, true);
    if (status == ATTN_OK && attn_tensor_present(&a->lse)) {
        status = attn_check_tensor("lse", &a->lse, ATTN_WIDE_TYPES, true);
        if (status == ATTN_OK && (!same_rows(&a->lse, &a->o) || a->lse.shape[3] != 1)) {
            status = attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                               "lse must have the rows of o and a last axis of 1");
        }
    }
    if (status == ATTN_OK && (a->parts < 1 || !a->part_o || !a->part_lse)) {
        status = attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                           "parts = %lld needs part_o and part_lse of at least one part",
                           (long long)a->parts);
    }
    for (int64_t i = 0; status == ATTN_OK && i < a->parts; i++) {
        const attn_tensor *o = &a->part_o[i], *lse = &a->part_lse[i];
        status = attn_check_tensor("part_o", o, ATTN_FLOAT_TYPES, false);
        if (status == ATTN_OK) {
            status = attn_check_tensor("part_lse", lse, ATTN_WIDE_TYPES, false);
        }
        if (status == ATTN_OK && (!same_rows(o, &a->o) || o->shape[3] != a->o.shape[3])) {
            status = bad_part("part_o", i, "must have the shape of o");
        }
        if (status == ATTN_OK && (!same_rows(lse, &a->o) || lse->shape[3] != 1)) {
            status = bad_part("part_lse", i, "must have the rows of o and a last axis of 1");
        }
    }
    return status;
}

static double part_lse(const attn_merge_args *a, int64_t part, int64_t b, int64_t i, int64_t h)
{
    const attn_tensor *t = &a->part_lse[part];
    return attn_element_to_f64(attn_at(t, b, i, h, 0), t->dtype);
}

/* lse = ln sum exp(lse_p); NaN if any part's is. */
static double merged_lse(const attn_merge_args *a, int64_t b, int64_t i, int64_t h)
{
    double top = -INFINITY, sum = 0;
    for (int64_t part = 0; part < a->parts; part++) {
        double x = part_lse(a, part, b, i, h);
        top = x > top || x != x ? x : top;
    }
    for (int64_t part = 0; part < a->parts && top > -INFINITY; part++) {
        sum += exp(part_lse(a, part, b, i, h) - top);
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
        double x = part_lse(a, part, b, i, h), weight = exp(x - lse);
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
    double lse = merged_lse(a, b, i, h);
    for (int64_t c = 0, dv = a->o.shape[3]; c < dv; c += CHUNK) {
        merge_columns(a, lse, b, i, h, c, dv - c < CHUNK ? dv - c : CHUNK);
    }
    if (a->lse.data) {
        attn_element_from_f64(attn_at(&a->lse, b, i, h, 0), a->lse.dtype, lse);
    }
}

static void merge_task(void *arg, int64_t index, int32_t thread)
{
    const attn_merge_args *a = arg;
    attn_host host;
    (void)thread;
    int64_t b = index / a->o.shape[1], i = index % a->o.shape[1];
    attn_host_leave(&host);
    for (int64_t h = 0; h < a->o.shape[2]; h++) {
        merge_row(a, b, i, h);
    }
    attn_host_return(&host);
}

attn_status attn_merge(attn_context *context, const attn_merge_args *args)
{
    attn_merge_args a;
    attn_status status = attn_copy_args(&a, sizeof a, args, "attn_merge_args");
    if (status == ATTN_OK) {
        status = attn_context_get(context, &context);
    }
    if (status == ATTN_OK && context->cuda) {
        status = attn_fail(ATTN_ERR_UNSUPPORTED,
                           "attn_merge runs on the CPU only; the context is for %s",
                           attn_cuda_name(context->cuda));
    }
    if (status == ATTN_OK) {
        status = check(&a);
    }
    if (status == ATTN_OK && (a.o.shape[2] == 0 || (a.o.shape[3] == 0 && !a.lse.data))) {
        return ATTN_OK; /* nothing to write, however many rows */
    }
    int64_t rows;
    if (status == ATTN_OK && __builtin_mul_overflow(a.o.shape[0], a.o.shape[1], &rows)) {
        status =
            attn_fail(ATTN_ERR_OVERFLOW, "o.shape[0] times o.shape[1] does not fit in 64 bits");
    }
    if (status == ATTN_OK) {
        context->executor.parallel_for(context->executor.user, rows, merge_task, &a);
    }
    return status;
}
