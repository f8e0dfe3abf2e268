/*
 * merge.c: the front door of attn_merge.
 */
#include "api/args.h"
#include "api/context.h"
#include "core/error.h"
#include "core/overlap.h"
#include <string.h>

static attn_status bad_part(const char *name, int64_t part, const char *why)
{
    return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s[%lld] %s", name, (long long)part, why);
}

static bool same_rows(const attn_tensor *a, const attn_tensor *b)
{
    return a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1] && a->shape[2] == b->shape[2];
}

/* The parts of a result whose o is `like`. */
static attn_status check_parts(const attn_merge_args *args, const attn_tensor *like)
{
    if (args->parts < 1 || !args->part_o || !args->part_lse) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "parts = %lld needs part_o and part_lse of at least one part",
                         (long long)args->parts);
    }
    for (int64_t i = 0; i < args->parts; i++) {
        const attn_tensor *o = &args->part_o[i], *lse = &args->part_lse[i];
        TRY(attn_check_tensor("part_o", o, ATTN_FLOAT_TYPES, false));
        TRY(attn_check_tensor("part_lse", lse, ATTN_WIDE_TYPES, false));
        if (!same_rows(o, like) || o->shape[3] != like->shape[3]) {
            return bad_part("part_o", i, "must have the shape of o");
        }
        if (!same_rows(lse, like) || lse->shape[3] != 1) {
            return bad_part("part_lse", i, "must have the rows of o and a last axis of 1");
        }
    }
    return ATTN_OK;
}

/* An optional LSE, or its gradient, of a result whose o is `like`. */
static attn_status check_lse(const char *name, const attn_tensor *lse, bool output,
                             const attn_tensor *like)
{
    if (!attn_tensor_present(lse)) {
        return ATTN_OK;
    }
    TRY(attn_check_tensor(name, lse, ATTN_WIDE_TYPES, output));
    return same_rows(lse, like) && lse->shape[3] == 1
               ? ATTN_OK
               : attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                           "%s must have the rows of o and a last axis of 1", name);
}

static attn_status check_rows(const attn_tensor *o)
{
    int64_t rows;
    return __builtin_mul_overflow(o->shape[0], o->shape[1], &rows)
               ? attn_fail(ATTN_ERR_OVERFLOW, "o.shape[0] times o.shape[1] does not fit in 64 bits")
               : ATTN_OK;
}

/* An output may be a part's view itself, but not overlap it otherwise, nor any other tensor. */
static bool meets(const attn_tensor *output, const attn_tensor *part, bool may_be_same)
{
    const bool same = may_be_same && output->data == part->data && output->dtype == part->dtype &&
                      memcmp(output->stride, part->stride, sizeof part->stride) == 0;
    return output->data && !same && attn_tensors_overlap(output, part);
}

static attn_status check_overlaps(const attn_merge_args *args)
{
    static const char sentence[] =
        "%s and %s[%lld] overlap: what is written must have memory of its own or be that part";
    if (meets(&args->o, &args->lse, false)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "o and lse overlap");
    }
    for (int64_t i = 0; i < args->parts; i++) {
        const attn_tensor *o = &args->part_o[i], *lse = &args->part_lse[i];
        if (meets(&args->o, o, true) || meets(&args->lse, o, false)) {
            return attn_fail(ATTN_ERR_INVALID_ARGUMENT, sentence,
                             meets(&args->o, o, true) ? "o" : "lse", "part_o", (long long)i);
        }
        if (meets(&args->o, lse, false) || meets(&args->lse, lse, true)) {
            return attn_fail(ATTN_ERR_INVALID_ARGUMENT, sentence,
                             meets(&args->o, lse, false) ? "o" : "lse", "part_lse", (long long)i);
        }
    }
    return ATTN_OK;
}

attn_status attn_merge(attn_context *context, const attn_merge_args *args)
{
    attn_merge_args copy;
    TRY(attn_copy_args(&copy, sizeof copy, args, "attn_merge_args"));
    TRY(attn_context_get(context, &context));
    TRY(attn_context_takes_stream(context, copy.stream));
    TRY(attn_check_tensor("o", &copy.o, ATTN_FLOAT_TYPES, true));
    TRY(check_lse("lse", &copy.lse, true, &copy.o));
    TRY(check_parts(&copy, &copy.o));
    if (copy.o.shape[2] == 0 || (copy.o.shape[3] == 0 && !copy.lse.data)) {
        return ATTN_OK; /* nothing to write, however many rows */
    }
    TRY(check_overlaps(&copy));
    TRY(check_rows(&copy.o));
    return context->backend->merge(context->device, &copy);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Checks an optional output of part i. */
static attn_status check_gradient(const attn_merge_backward_args *args, const char *name, int64_t i,
                                  const attn_tensor *tensor, const attn_tensor *like, int types)
{
    const attn_tensor *const others[] = {&args->d_o, &args->d_lse, &args->forward->part_o[i],
                                         &args->forward->part_lse[i]};
    if (!attn_tensor_present(tensor)) {
        return ATTN_OK;
    }
    TRY(attn_check_tensor(name, tensor, types, true));
    if (!same_rows(tensor, like) || tensor->shape[3] != like->shape[3]) {
        return bad_part(name, i, "must have the shape of the part");
    }
    for (int n = 0; n < 4; n++) {
        if (meets(tensor, others[n], false)) {
            return bad_part(name, i, "overlaps d_o, d_lse or the part");
        }
    }
    return ATTN_OK;
}

static attn_status check_gradients(const attn_merge_backward_args *args)
{
    const attn_merge_args *f = args->forward;
    const attn_tensor *last = NULL; /* the output before */
    for (int64_t i = 0; i < f->parts; i++) {
        const attn_tensor *d_o = args->part_d_o ? &args->part_d_o[i] : NULL,
                          *d_lse = args->part_d_lse ? &args->part_d_lse[i] : NULL;
        if (d_o) {
            TRY(check_gradient(args, "part_d_o", i, d_o, &f->part_o[i], ATTN_FLOAT_TYPES));
        }
        if (d_lse) {
            TRY(check_gradient(args, "part_d_lse", i, d_lse, &f->part_lse[i], ATTN_WIDE_TYPES));
        }
        if ((d_o && last && meets(d_o, last, false)) ||
            (d_o && d_lse && meets(d_o, d_lse, false))) {
            return bad_part("part_d_o", i, "overlaps another gradient");
        }
        last = d_o ? d_o : last;
    }
    return ATTN_OK;
}

attn_status attn_merge_backward(attn_context *context, const attn_merge_backward_args *args)
{
    attn_merge_backward_args copy;
    attn_merge_args forward;
    TRY(attn_copy_args(&copy, sizeof copy, args, "attn_merge_backward_args"));
    if (copy.forward == NULL) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "attn_merge_backward_args.forward is NULL");
    }
    TRY(attn_copy_args(&forward, sizeof forward, copy.forward, "attn_merge_args"));
    copy.forward = &forward;
    TRY(attn_context_get(context, &context));
    TRY(attn_context_takes_stream(context, copy.stream));
    TRY(attn_check_tensor("d_o", &copy.d_o, ATTN_FLOAT_TYPES, false));
    TRY(check_lse("d_lse", &copy.d_lse, false, &copy.d_o));
    TRY(check_parts(&forward, &copy.d_o));
    TRY(check_gradients(&copy));
    if (copy.d_o.shape[2] == 0 || (copy.d_o.shape[3] == 0 && !copy.part_d_lse)) {
        return ATTN_OK; /* nothing to write, however many rows */
    }
    TRY(check_rows(&copy.d_o));
    return context->backend->merge_backward(context->device, &copy);
}
