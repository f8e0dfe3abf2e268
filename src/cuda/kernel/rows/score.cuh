/*
 * score.cuh: single elements in float or double, the steps between Q K^T and softmax (C9 of
 * attn.h), and warp reductions.
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

/* Stores x, to a 16-bit type by way of float, as the CPU does. */
template <class Real> __device__ __forceinline__ void store_at(char *to, int32_t dtype, Real x)
{
    switch (dtype) {
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

/* Stores x in an element. An absent tensor is left alone. */
template <class Real>
__device__ __forceinline__ void store_real(const attn_tensor &t, int64_t batch, int64_t row,
                                           int64_t head, int64_t c, Real x)
{
    if (t.data != NULL) {
        store_at(attn_at(&t, batch, row, head, c), t.dtype, x);
    }
}

/* The gradient of a row's LSE, or 0. */
template <class Real>
__device__ __forceinline__ Real load_d_lse(const attn_gradients &grads, int64_t b, int64_t i,
                                           int64_t h)
{
    const attn_tensor &t = grads.d_lse;
    return t.data == NULL ? 0 : load_real<Real>(attn_at(&t, b, i, h, 0), t.dtype);
}

/* One query row of a head, with the data of its scores. Indices are clamped, since extents are not
 * checked against lengths in the GPU's memory. */
template <class Real> struct ScoreRow {
    const attn_problem &p;
    const char *mask, *bias; /* elements of key 0, or NULL */
    Real slope;
    int64_t position; /* i + off in C3 */

    __device__ __forceinline__ ScoreRow(const attn_problem &p_, const attn_sequence &s, int head,
                                        int64_t i)
        : p(p_), mask(first(p_.mask, s, head, i)), bias(first(p_.bias, s, head, i)), slope(0),
          position(i + s.diagonal)
    {
        if (p.alibi.data != NULL) {
            slope =
                load_real<Real>(attn_at_broadcast(&p.alibi, s.index, head, 0, 0), p.alibi.dtype);
        }
    }
    static __device__ __forceinline__ const char *first(const attn_tensor &t,
                                                        const attn_sequence &s, int head, int64_t i)
    {
        return t.data == NULL ? NULL
                              : attn_at_broadcast(&t, s.index, head, min(i, t.shape[2] - 1), 0);
    }
    static __device__ __forceinline__ int64_t key(const attn_tensor &t, int64_t j)
    {
        return min(j, t.shape[3] - 1) * t.stride[3];
    }

    /* True if the mask tensor shows the key. Intervals of keys are in core/mask.h. */
    __device__ __forceinline__ bool visible(int64_t j) const
    {
        return mask == NULL || mask[key(p.mask, j)] != 0;
    }

    /* Computes the score from the product of q and k. */
    __device__ __forceinline__ Real step(Real x, int64_t j) const
    {
        x *= (Real)p.scale;
        if (p.softcap > 0) {
            x = (Real)p.softcap * tanh(x / (Real)p.softcap);
        }
        if (bias != NULL) {
            const int size = p.bias.dtype == ATTN_F64 ? 8 : p.bias.dtype == ATTN_F32 ? 4 : 2;
            Real b = load_real<Real>(bias + key(p.bias, j) * size, p.bias.dtype);
            x = b == (Real)-INFINITY ? b : x + b;
        }
        if (slope != 0) {
            int64_t distance = position - j;
            x -= slope * (Real)(distance < 0 ? -distance : distance);
        }
        return x;
    }
};

/* The derivative of the score by the product is the scale times this: 1, or with e = exp(-2 |x|)
 * 1 - tanh^2(x) = 4 e / (1 + e)^2. */
template <class Real>
__device__ __forceinline__ Real score_bend(const attn_problem &p, Real product)
{
    if (p.softcap <= 0) {
        return 1;
    }
    const Real e = exp(-2 * fabs(product * (Real)p.scale / (Real)p.softcap));
    return 4 * e / ((1 + e) * (1 + e));
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
