/*
 * element.c: oracle_element and oracle_bound, the two parts of oracle.h that know number formats.
 */
#include "codes.h"
#include "half.h"
#include "oracle.h"

#include <math.h>

double oracle_element(const attn_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    const int64_t last = t->dtype == ATTN_B1X8 ? i3 / 8 : i3; /* there i3 counts bits */
    const int64_t at =
        i0 * t->stride[0] + i1 * t->stride[1] + i2 * t->stride[2] + last * t->stride[3];
    switch (t->dtype) {
    case ATTN_F64:
        return ((const double *)t->data)[at];
    case ATTN_F32:
        return (double)((const float *)t->data)[at];
    case ATTN_F16:
        return half_f16_to_double(((const uint16_t *)t->data)[at]);
    case ATTN_BF16:
        return half_bf16_to_double(((const uint16_t *)t->data)[at]);
    case ATTN_BOOL:
        return ((const uint8_t *)t->data)[at] != 0;
    case ATTN_I32:
        return ((const int32_t *)t->data)[at];
    case ATTN_I64:
        return (double)((const int64_t *)t->data)[at];
    case ATTN_U8:
        return ((const uint8_t *)t->data)[at];
    case ATTN_I8:
        return ((const int8_t *)t->data)[at];
    case ATTN_B1X8:
        return ((const uint8_t *)t->data)[at] >> i3 % 8 & 1;
    case ATTN_E4M3:
    case ATTN_E5M2:
        return codes_number(t->dtype, ((const uint8_t *)t->data)[at], false);
    default:
        return (double)NAN;
    }
}

/* One unit in the last place of x in the type, that of the smallest subnormal for 0. */
static double unit_in_last_place(int32_t dtype, double x)
{
    int digits = dtype == ATTN_F64 ? 53 : dtype == ATTN_F32 ? 24 : dtype == ATTN_F16 ? 11 : 8;
    int lowest = dtype == ATTN_F64   ? -1074
                 : dtype == ATTN_F32 ? -149
                 : dtype == ATTN_F16 ? -24
                                     : -133;
    int exponent;
    frexp(x, &exponent);
    return ldexp(1.0, x == 0 || exponent - digits < lowest ? lowest : exponent - digits);
}

double oracle_bound(int32_t in_dtype, int32_t out_dtype, double c, double o, double o_abs,
                    double score_abs)
{
    double u = in_dtype == ATTN_F64 ? 0x1p-53 : 0x1p-24;
    return unit_in_last_place(out_dtype, o) / 2 + c * u * (1 + score_abs) * o_abs;
}
