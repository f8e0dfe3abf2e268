/*
 * codes_kit.h: functions that tests of quantised tensors share.
 */
#ifndef TESTS_OP_CODES_KIT_H
#define TESTS_OP_CODES_KIT_H

#include "codes.h"
#include "trial.h"

#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

static const int32_t types[] = {ATTN_I8, ATTN_I4X2, ATTN_E4M3, ATTN_E5M2};

static inline attn_tensor fresh(int32_t dtype, const int64_t *n)
{
    const size_t bytes = (size_t)(n[0] * n[1] * n[2] * n[3]) * attn_dtype_size(dtype);
    void *data = malloc(bytes + 1);
    assert_non_null(data);
    memset(data, 0xFF, bytes);
    return attn_tensor_bshd(data, (attn_dtype)dtype, n[0], n[1], n[2], n[3]);
}

static inline void assert_ok(attn_status status)
{
    if (status != ATTN_OK) {
        fail_msg("%s", attn_last_error());
    }
}

/* The values of K's or V's codes. */
static inline attn_tensor values_of(const attn_tensor *codes, const attn_tensor *scale,
                                    const attn_tensor *shift, int32_t dtype)
{
    int64_t n[4];
    memcpy(n, codes->shape, sizeof n);
    n[3] *= codes_columns(codes->dtype);
    const attn_tensor x = fresh(dtype, n);
    const attn_quantize_args a = {
        .struct_size = sizeof a, .x = x, .codes = *codes, .scale = *scale, .shift = *shift};
    assert_ok(attn_dequantize(NULL, &a));
    return x;
}

#endif
