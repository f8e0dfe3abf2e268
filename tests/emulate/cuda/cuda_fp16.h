/*
 * cuda_fp16.h: in place of CUDA's.
 */
#pragma once
#include "halves.h"

struct __half {
    uint16_t bits;
};
inline float __half2float(__half x)
{
    return attn_f16_to_f32(x.bits);
}
inline __half __float2half_rn(float x)
{
    return {attn_f32_to_f16(x)};
}
inline __half __double2half(double x)
{
    return {attn_f32_to_f16(emulated::cut_to_float(x))};
}
