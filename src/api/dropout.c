/*
 * dropout.c: entry point of dropout's mask.
 */
#include "api/args.h"
#include "api/context.h"
#include "core/dropout_args.h"
#include "core/error.h"
#include "core/overlap.h"
#include "cpu/machine/host.h"

/* device: origins lie in a GPU's memory and are not read. */
static attn_status check(const attn_dropout_mask_args *args, bool device,
                         attn_dropout_problem *problem)
{
    const attn_tensor *tensor = &args->keep;
    attn_host host;
    int64_t rows, rows_end, keys_end;
    const attn_tensor *const origins[] = {&args->q_origin, &args->k_origin};
    static const char *const names[] = {"q_origin", "k_origin"};
    TRY(attn_check_tensor("keep", tensor, 1 << ATTN_BOOL, true));
    attn_host_leave(&host); /* the threshold is rounded here */
    attn_status status = attn_dropout_init(&problem->dropout, args->dropout_p, args->dropout_seed,
                                           args->dropout_offset);
    attn_host_return(&host);
    TRY(status);
    TRY(attn_check_origin("q_origin", &args->q_origin, tensor->shape[0], tensor->shape[2], device,
                          &rows_end));
    TRY(attn_check_origin("k_origin", &args->k_origin, tensor->shape[0], tensor->shape[3], device,
                          &keys_end));
    TRY(attn_dropout_fits(&problem->dropout, "keep", rows_end, "keep", keys_end));
    TRY(attn_count_rows("keep", tensor, 3, &rows));
    for (int i = 0; i < 2; i++) {
        if (attn_tensors_overlap(tensor, origins[i])) {
            return attn_fail_overlap("keep", names[i]);
        }
    }
    problem->keep = *tensor, problem->q_origin = args->q_origin, problem->k_origin = args->k_origin;
    attn_normalise_tensor(&problem->q_origin, false);
    attn_normalise_tensor(&problem->k_origin, false);
    return ATTN_OK;
}

attn_status attn_dropout_mask(attn_context *context, const attn_dropout_mask_args *args)
{
    attn_dropout_mask_args copy;
    attn_dropout_problem problem;
    TRY(attn_copy_args(&copy, sizeof copy, args, "attn_dropout_mask_args"));
    TRY(attn_context_get(context, &context));
    TRY(attn_context_takes_stream(context, copy.stream));
    TRY(check(&copy, context->backend->meaning & ATTN_OF_DEVICE, &problem));
    const int64_t *n = problem.keep.shape;
    return n[0] == 0 || n[1] == 0 || n[2] == 0 || n[3] == 0
               ? ATTN_OK
               : context->backend->dropout_mask(context->device, &problem, copy.stream);
}
