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

/* An output may be a part's view itself, but not overlap it otherwise, nor any other tensor. */
static bool meets(const attn_tensor *output, const attn_tensor *part, bool may_be_same)
{
    const bool same = may_be_same && output->data == part->data && output->dtype == part->dtype &&
                      memcmp(output->stride, part->stride, sizeof part->stride) == 0;
    return output->data && !same && attn_tensors_overlap(output, part);
}

static attn_status check_overlaps(const attn_merge_args *a)
{
    static const char sentence[] =
        "%s and %s[%lld] overlap: what is written must have memory of its own or be that part";
    if (meets(&a->o, &a->lse, false)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "o and lse overlap");
    }
    for (int64_t i = 0; i < a->parts; i++) {
        const attn_tensor *o = &a->part_o[i], *lse = &a->part_lse[i];
        if (meets(&a->o, o, true) || meets(&a->lse, o, false)) {
            return attn_fail(ATTN_ERR_INVALID_ARGUMENT, sentence,
                             meets(&a->o, o, true) ? "o" : "lse", "part_o", (long long)i);
        }
        if (meets(&a->o, lse, false) || meets(&a->lse, lse, true)) {
            return attn_fail(ATTN_ERR_INVALID_ARGUMENT, sentence,
                             meets(&a->o, lse, false) ? "o" : "lse", "part_lse", (long long)i);
        }
    }
    return ATTN_OK;
}

attn_status attn_merge(attn_context *context, const attn_merge_args *args)
{
    attn_merge_args a;
    int64_t rows;
    TRY(attn_copy_args(&a, sizeof a, args, "attn_merge_args"));
    TRY(attn_context_get(context, &context));
    if (context->backend->merge == NULL) {
        return attn_context_lacks(context, "attn_merge");
    }
    TRY(check(&a));
    if (a.o.shape[2] == 0 || (a.o.shape[3] == 0 && !a.lse.data)) {
        return ATTN_OK; /* nothing to write, however many rows */
    }
    TRY(check_overlaps(&a));
    if (__builtin_mul_overflow(a.o.shape[0], a.o.shape[1], &rows)) {
        return attn_fail(ATTN_ERR_OVERFLOW, "o.shape[0] times o.shape[1] does not fit in 64 bits");
    }
    context->backend->merge(context->device, &a);
    return ATTN_OK;
}
