/*
 * merge.c: entry points of attn_merge and its gradients.
 */
#include "api/args.h"
#include "api/context.h"
#include "core/error.h"
#include "core/overlap.h"
#include <stdio.h>

enum { NAME = 40 }; /* "part_d_lse[..]" */

static const char *name_part(char *name, const char *tensors, int64_t part)
{
    snprintf(name, NAME, "%s[%lld]", tensors, (long long)part);
    return name;
}

/* An LSE, or its gradient, of the rows of a result. */
static attn_status check_lse(const char *name, const attn_tensor *lse, bool output,
                             const char *like_name, const attn_tensor *like)
{
    TRY(attn_check_tensor(name, lse, ATTN_WIDE_TYPES, output));
    TRY(attn_check_extents(name, lse, like_name, like, 3));
    const long long columns = lse->shape[3];
    return columns == 1 ? ATTN_OK
                        : attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s.shape[3] = %lld, must be 1",
                                    name, columns);
}

/* The parts of a result whose o, or its gradient, is `like`. */
static attn_status check_parts(const attn_merge_args *args, const char *like_name,
                               const attn_tensor *like)
{
    char name[NAME];
    if (args->parts < 1 || !args->part_o || !args->part_lse) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "parts = %lld needs part_o and part_lse of at least one part",
                         (long long)args->parts);
    }
    for (int64_t i = 0; i < args->parts; i++) {
        const attn_tensor *o = &args->part_o[i], *lse = &args->part_lse[i];
        TRY(attn_check_tensor(name_part(name, "part_o", i), o, ATTN_FLOAT_TYPES, false));
        TRY(attn_check_extents(name, o, like_name, like, 4));
        TRY(check_lse(name_part(name, "part_lse", i), lse, false, like_name, like));
    }
    return ATTN_OK;
}

/* Of equal shapes. The stride of an axis of one element has no meaning. */
static bool same_view(const attn_tensor *a, const attn_tensor *b)
{
    bool same = a->data == b->data && a->dtype == b->dtype;
    for (int axis = 0; axis < 4; axis++) {
        same &= a->stride[axis] == b->stride[axis] || a->shape[axis] == 1;
    }
    return same;
}

/* An output may be a part's view itself, but not overlap it otherwise, nor any other tensor. */
static bool meets(const attn_tensor *output, const attn_tensor *part, bool may_be_same)
{
    const bool same = may_be_same && same_view(output, part);
    return output->data && !same && attn_tensors_overlap(output, part);
}

static attn_status check_overlaps(const attn_merge_args *args)
{
    static const char sentence[] =
        "%s and %s[%lld] overlap: an output must not share memory unless it is that part";
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
    int64_t rows;
    TRY(attn_copy_args(&copy, sizeof copy, args, "attn_merge_args"));
    TRY(attn_context_get(context, &context));
    TRY(attn_context_takes_stream(context, copy.stream));
    TRY(attn_check_tensor("o", &copy.o, ATTN_FLOAT_TYPES, true));
    if (attn_tensor_present(&copy.lse)) {
        TRY(check_lse("lse", &copy.lse, true, "o", &copy.o));
    }
    TRY(check_parts(&copy, "o", &copy.o));
    if (copy.o.shape[2] == 0 || (copy.o.shape[3] == 0 && !copy.lse.data)) {
        return ATTN_OK; /* nothing to write, however many rows */
    }
    TRY(check_overlaps(&copy));
    TRY(attn_count_rows("o", &copy.o, 2, &rows));
    return context->backend->merge(context->device, &copy);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The gradients of part i: of o, then of lse. NULL: not wanted. */
static const attn_tensor *gradient(const attn_merge_backward_args *args, int64_t i, int of)
{
    const attn_tensor *tensors = of == 0 ? args->part_d_o : args->part_d_lse;
    return tensors ? &tensors[i] : NULL;
}

/* Checks an optional gradient of part i. */
static attn_status check_gradient(const attn_merge_backward_args *args, int64_t i, int of)
{
    const attn_merge_args *f = args->forward;
    const attn_tensor *tensor = gradient(args, i, of);
    char name[NAME], like_name[NAME];
    if (!tensor || !attn_tensor_present(tensor)) {
        return ATTN_OK;
    }
    name_part(name, of == 0 ? "part_d_o" : "part_d_lse", i);
    TRY(attn_check_tensor(name, tensor, of == 0 ? ATTN_FLOAT_TYPES : ATTN_WIDE_TYPES, true));
    name_part(like_name, of == 0 ? "part_o" : "part_lse", i);
    return attn_check_extents(name, tensor, like_name, of == 0 ? &f->part_o[i] : &f->part_lse[i],
                              4);
}

/* All tensors as a list (core/overlap.h): d_o, d_lse, then o, lse and their gradients of each
 * part. */
enum { FIRST_PART = 2, OF_PART = 4 };

static const attn_tensor *list_tensors(const void *user, int64_t number, bool *output)
{
    const attn_merge_backward_args *args = user;
    const int64_t part = (number - FIRST_PART) / OF_PART, of = (number - FIRST_PART) % OF_PART;
    *output = number >= FIRST_PART && of >= 2;
    return number < FIRST_PART ? (number == 0 ? &args->d_o : &args->d_lse)
           : *output           ? gradient(args, part, (int)of - 2)
           : of == 0           ? &args->forward->part_o[part]
                               : &args->forward->part_lse[part];
}

static const char *name_tensor(char *name, int64_t number)
{
    static const char *const names[] = {"part_o", "part_lse", "part_d_o", "part_d_lse"};
    const int64_t at = number - FIRST_PART;
    return number < FIRST_PART ? number == 0 ? "d_o" : "d_lse"
                               : name_part(name, names[at % OF_PART], at / OF_PART);
}

/* Checks all of them before overlaps, which are those of valid tensors. */
static attn_status check_gradients(const attn_merge_backward_args *args)
{
    for (int64_t i = 0; i < 2 * args->forward->parts; i++) {
        TRY(check_gradient(args, i / 2, (int)(i % 2)));
    }
    char name[NAME], other_name[NAME];
    int64_t output, other;
    return attn_overlap_find(list_tensors, args, FIRST_PART + OF_PART * args->forward->parts,
                             &output, &other)
               ? attn_fail_overlap(name_tensor(name, output), name_tensor(other_name, other))
               : ATTN_OK;
}

attn_status attn_merge_backward(attn_context *context, const attn_merge_backward_args *args)
{
    attn_merge_backward_args copy;
    attn_merge_args forward;
    int64_t rows;
    TRY(attn_copy_args(&copy, sizeof copy, args, "attn_merge_backward_args"));
    if (copy.forward == NULL) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "attn_merge_backward_args.forward is NULL");
    }
    TRY(attn_copy_args(&forward, sizeof forward, copy.forward, "attn_merge_args"));
    copy.forward = &forward;
    TRY(attn_context_get(context, &context));
    TRY(attn_context_takes_stream(context, copy.stream));
    TRY(attn_check_tensor("d_o", &copy.d_o, ATTN_FLOAT_TYPES, false));
    if (attn_tensor_present(&copy.d_lse)) {
        TRY(check_lse("d_lse", &copy.d_lse, false, "d_o", &copy.d_o));
    }
    TRY(check_parts(&forward, "d_o", &copy.d_o));
    TRY(check_gradients(&copy));
    if (copy.d_o.shape[2] == 0 || (copy.d_o.shape[3] == 0 && !copy.part_d_lse)) {
        return ATTN_OK; /* nothing to write, however many rows */
    }
    TRY(attn_count_rows("d_o", &copy.d_o, 2, &rows));
    return context->backend->merge_backward(context->device, &copy);
}
