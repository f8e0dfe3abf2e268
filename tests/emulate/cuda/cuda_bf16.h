/*
 * cuda_bf16.h: in place of CUDA's.
 */
#pragma once
#include "halves.h"

struct __nv_bfloat16 {
    uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 x)
{
    return attn_bf16_to_f32(x.bits);
}
inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    return {attn_f32_to_bf16(x)};
}
inline __nv_bfloat16 __double2bfloat16(double x)
{
    return {attn_f32_to_bf16(emulated::cut_to_float(x))};
}
