/*
 * score.cuh: single elements in float or double, the steps between Q K^T and softmax (C9 of attn.h), and warp
 * reductions, for the generic kernel.
 */
#pragma once
#include "core/problem.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>

template <class Real> __device__ __forceinline__ Real load_real(const char *at, int32_t dtype)
{
    switch (dtype) {
    case ATTN_F64:
        return (Real) * (const double *)at;
    case ATTN_F32:
        return (Real) * (const float *)at;
    case ATTN_F16:
        return (Real)__half2float(*(const __half *)at);
    default:
        return (Real)__bfloat162float(*(const __nv_bfloat16 *)at);
    }
}

/* To a 16-bit type by way of float, as the CPU does. Nothing happens if the tensor is absent. */
template <class Real>
__device__ __forceinline__ void store_real(const attn_tensor &t, int64_t batch, int64_t row, int64_t head, int64_t c,
                                           Real x)
{
    if (t.data == NULL) {
        return;
    }
    void *to = attn_at(&t, batch, row, head, c);
    switch (t.dtype) {
    case ATTN_F64:
        *(double *)to = (double)x;
        break;
    case ATTN_F32:
        *(float *)to = (float)x;
        break;
    case ATTN_F16:
        *(__half *)to = __float2half_rn((float)x);
        break;
    default:
        *(__nv_bfloat16 *)to = __float2bfloat16_rn((float)x);
        break;
    }
}

/* Element of a tensor that may be broadcast. On a GPU nobody checked it against the lengths: hence the last clamp. */
__device__ __forceinline__ const char *score_element(const attn_tensor &t, int64_t b, int64_t h, int64_t i, int64_t j)
{
    return attn_at_broadcast(&t, b, h, min(i, t.shape[2] - 1), min(j, t.shape[3] - 1));
}

__device__ __forceinline__ bool mask_at(const attn_problem &p, const attn_sequence &s, int head, int64_t i, int64_t j)
{
    return p.mask.data == NULL || *score_element(p.mask, s.index, head, i, j) != 0;
}

template <class Real>
__device__ __forceinline__ Real score_step(const attn_problem &p, const attn_sequence &s, int head, int64_t i,
                                           int64_t j, Real x)
{
    x *= (Real)p.scale;
    if (p.softcap > 0) {
        x = (Real)p.softcap * tanh(x / (Real)p.softcap);
    }
    if (p.bias.data != NULL) {
        Real bias = load_real<Real>(score_element(p.bias, s.index, head, i, j), p.bias.dtype);
        x = bias == (Real)-INFINITY ? bias : x + bias;
    }
    if (p.alibi.data != NULL) {
        Real slope = load_real<Real>(attn_at_broadcast(&p.alibi, s.index, head, 0, 0), p.alibi.dtype);
        int64_t distance = i + s.diagonal - j;
        x -= slope * (Real)(distance < 0 ? -distance : distance);
    }
    return x;
}

template <class Real> __device__ __forceinline__ Real warp_max(Real x)
{
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        x = fmax(x, __shfl_xor_sync(~0u, x, lanes));
    }
    return x;
}

template <class Real> __device__ __forceinline__ Real warp_sum(Real x)
{
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        x += __shfl_xor_sync(~0u, x, lanes);
    }
    return x;
}
