/*
 * dropout.c: the front door of dropout's mask.
 */
#include "api/args.h"
#include "api/context.h"
#include "core/error.h"
#include "cpu/machine/host.h"

static attn_status check(const attn_dropout_mask_args *a, attn_dropout_problem *p)
{
    const attn_tensor *t = &a->keep;
    attn_host host;
    int64_t rows, rows_end, keys_end;
    TRY(attn_check_tensor("keep", t, 1 << ATTN_BOOL, true));
    attn_host_leave(&host); /* the threshold is rounded here */
    attn_status status =
        attn_dropout_init(&p->dropout, a->dropout_p, a->dropout_seed, a->dropout_offset);
    attn_host_return(&host);
    TRY(status);
    TRY(attn_check_origin("q_origin", &a->q_origin, t->shape[0], t->shape[2], false, &rows_end));
    TRY(attn_check_origin("k_origin", &a->k_origin, t->shape[0], t->shape[3], false, &keys_end));
    TRY(attn_dropout_fits(&p->dropout, "keep", rows_end, "keep", keys_end));
    if (__builtin_mul_overflow(t->shape[0], t->shape[1], &rows) ||
        __builtin_mul_overflow(rows, t->shape[2], &rows)) {
        return attn_fail(ATTN_ERR_OVERFLOW, "the rows of keep do not fit in 64 bits");
    }
    p->keep = *t, p->q_origin = a->q_origin, p->k_origin = a->k_origin;
    attn_normalise_tensor(&p->q_origin, false);
    attn_normalise_tensor(&p->k_origin, false);
    return ATTN_OK;
}

attn_status attn_dropout_mask(attn_context *context, const attn_dropout_mask_args *args)
{
    attn_dropout_mask_args a;
    attn_dropout_problem p;
    TRY(attn_copy_args(&a, sizeof a, args, "attn_dropout_mask_args"));
    TRY(attn_context_get(context, &context));
    if (context->backend->dropout_mask == NULL) {
        return attn_context_lacks(context, "attn_dropout_mask");
    }
    TRY(check(&a, &p));
    context->backend->dropout_mask(context->device, &p);
    return ATTN_OK;
}
