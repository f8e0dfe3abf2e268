/*
 * quantize.c: entry points of quantised tensors on their own.
 */
#include "api/args.h"
#include "api/context.h"
#include "core/codes.h"
#include "core/error.h"
#include "core/overlap.h"

static attn_status check_codes(const attn_quantize_args *args, bool encode)
{
    static const attn_code_names names = {"codes", "scale", "shift"};
    const int64_t each = attn_code_columns(args->codes.dtype), have = args->codes.shape[3],
                  want = args->x.shape[3];
    TRY(attn_check_tensor("x", &args->x, ATTN_FLOAT_TYPES, !encode));
    TRY(attn_check_tensor("codes", &args->codes, ATTN_CODE_TYPES, encode));
    TRY(attn_check_extents("codes", &args->codes, "x", &args->x, 3));
    if (want % each != 0 || have != want / each) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "codes.shape[3] = %lld%s but x.shape[3] = %lld",
                         (long long)have, each == 2 ? " of i4x2, 2 columns each," : "",
                         (long long)want);
    }
    return attn_check_factors(&names, &args->codes, &args->scale, &args->shift, args->x.shape[3],
                              encode && args->scale_given == 0);
}

/* Outputs have memory of their own. */
static attn_status check_overlaps(const attn_quantize_args *args, bool encode)
{
    const attn_tensor *const all[] = {&args->x, &args->codes, &args->scale, &args->shift};
    const char *const name[] = {"x", "codes", "scale", "shift"};
    for (int i = 0; i < 4; i++) {
        for (int n = i + 1; n < 4; n++) {
            const bool inputs = encode ? args->scale_given && i != 1 && n != 1 : i > 0;
            if (!inputs && attn_tensors_overlap(all[i], all[n])) {
                return attn_fail_overlap(name[i], name[n]);
            }
        }
    }
    return ATTN_OK;
}

static attn_status run(attn_context *context, const attn_quantize_args *args, bool encode)
{
    attn_quantize_args copy;
    TRY(attn_copy_args(&copy, sizeof copy, args, "attn_quantize_args"));
    TRY(attn_context_get(context, &context));
    TRY(attn_context_takes_stream(context, copy.stream));
    if (copy.reserved != 0 || (copy.scale_given != 0 && copy.scale_given != 1)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "scale_given = %d must be 0 or 1, reserved 0",
                         (int)copy.scale_given);
    }
    TRY(check_codes(&copy, encode));
    TRY(check_overlaps(&copy, encode));
    int64_t rows;
    TRY(attn_count_rows("x", &copy.x, 3, &rows));
    const attn_quantized t = {copy.x, copy.codes, copy.scale, copy.shift,
                              copy.scale_given || !attn_tensor_present(&copy.scale)};
    if (rows == 0 || copy.x.shape[3] == 0) {
        return ATTN_OK;
    }
    return encode ? context->backend->quantize(context->device, &t, copy.stream)
                  : context->backend->dequantize(context->device, &t, copy.stream);
}

attn_status attn_quantize(attn_context *context, const attn_quantize_args *args)
{
    return run(context, args, true);
}

attn_status attn_dequantize(attn_context *context, const attn_quantize_args *args)
{
    return run(context, args, false);
}
