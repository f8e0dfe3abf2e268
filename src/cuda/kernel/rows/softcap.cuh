/*
 * softcap.cuh: softcap * tanh(scale s / softcap) for a thread's scores, without the cost of tanh.
 *
 * z = scale s / softcap. Where |z| <= 5/8, tanh(z) / z is a polynomial P of degree 4 in z^2, within
 * 2^-23.1 (minimax); the host folds the scale into its coefficients. Elsewhere
 * tanh|z| = 1 - 2 / (1 + e^(2|z|)). Relative errors in units of 2^-24: 4.3 near (1.8 of P
 * itself, 2.5 of coefficients and the last roundings), 5 far (the exponential's 6.2 and the
 * quotient's 1 count for 0.4 of what is subtracted, relative to 0.55 or more). Scores are mostly
 * small beside softcap, so a warp without other ones takes the polynomial alone; a score's bits
 * depend on it alone.
 */
#pragma once
#include "cuda/params.h"
#include "cuda/kernel/ptx/ptx.cuh"

__device__ __forceinline__ float softcap_near(const attn_cuda_steps &x, float s)
{
    const float z = s * x.near_scale, w = z * z;
    float p = x.near[4];
#pragma unroll
    for (int i = 3; i >= 0; i--) {
        p = fmaf(p, w, x.near[i]);
    }
    return s * p;
}

__device__ __forceinline__ float softcap_far(const attn_cuda_steps &x, float s)
{
    const float r = ptx::reciprocal_rough(ptx::exp2(fabsf(s) * x.far_scale) + 1);
    const float y = fmaf(r, -2 * x.far_cap, x.far_cap);
    return __uint_as_float(__float_as_uint(y) ^ (__float_as_uint(s) & 0x80000000));
}

/* Caps s[0 .. N-1] in place. */
template <int N>
__device__ __forceinline__ void softcap_scores(const attn_cuda_steps &x, float (&s)[N])
{
    float top[4] = {};
#pragma unroll
    for (int i = 0; i < N; i++) {
        top[i % 4] = fmaxf(top[i % 4], fabsf(s[i]));
    }
    const float most = fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3]));
    if (__any_sync(~0u, most > x.near_most)) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            s[i] =
                ptx::select(fabsf(s[i]) > x.near_most, softcap_far(x, s[i]), softcap_near(x, s[i]));
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
            s[i] = softcap_near(x, s[i]);
        }
    }
}
