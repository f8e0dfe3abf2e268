/*
 * softmax.cuh: the online softmax on accumulators of a warpgroup (layout: wgmma.cuh). A thread holds two
 * rows; a row lies in the four threads of a quad. Scores stay as they come from Q K^T; c = scale log2(e) > 0 turns them
 * into exponents of 2.
 */
#pragma once
#include "mma.cuh"
#include <math.h>

struct RowState {
    float m; /* largest score so far; -inf if none was visible */
    float l; /* sum of 2^(s c - m c) over this thread's columns */
};

__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* Scores -> probabilities relative to the new maximum; alpha[r] = what earlier sums and outputs shrink by. Four chains
 * for each maximum and sum, so that latencies overlap. */
template <int N>
__device__ __forceinline__ void online_softmax(float (&s)[N], float c, RowState (&state)[2], float (&alpha)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top[4] = {s[2 * r], s[2 * r + 1], s[2 * r + 4], s[2 * r + 5]};
#pragma unroll
        for (int i = 8 + 2 * r; i < N; i += 4) {
            top[i / 4 % 2 * 2] = fmaxf(top[i / 4 % 2 * 2], s[i]);
            top[i / 4 % 2 * 2 + 1] = fmaxf(top[i / 4 % 2 * 2 + 1], s[i + 1]);
        }
        float m = quad_max(fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3])));
        m = fmaxf(m, state[r].m);
        /* rounded products: a fused one would make alpha differ from 1 although the maximum stays, block after block */
        float base = m == -INFINITY ? 0 : __fmul_rn(m, c);
        alpha[r] = ptx::exp2(__fmul_rn(state[r].m, c) - base);
        state[r].m = m;
        float sum[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 2 * r; i < N; i += 4) {
            s[i] = ptx::exp2(fmaf(s[i], c, -base));
            s[i + 1] = ptx::exp2(fmaf(s[i + 1], c, -base));
            sum[i / 4 % 2 * 2] += s[i];
            sum[i / 4 % 2 * 2 + 1] += s[i + 1];
        }
        state[r].l = state[r].l * alpha[r] + ((sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
}

/* Probabilities as the A operand of P V: for a k-step of 16 keys four words of each part. BF16: type of the parts. There
 * may be more of P than of s: it is 0. */
template <bool BF16, int PARTS, int N, int WORDS>
__device__ __forceinline__ void pack_probabilities(const float (&s)[N], uint32_t (&p)[PARTS][WORDS])
{
#pragma unroll
    for (int i = PARTS * N / 2; i < PARTS * WORDS; i++) {
        p[i % PARTS][i / PARTS] = 0;
    }
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        if constexpr (PARTS == 1) {
            p[0][i] = ptx::pack_half<BF16>(s[2 * i], s[2 * i + 1]);
        } else {
            uint32_t parts[3];
            mma::split(s[2 * i], s[2 * i + 1], parts);
            p[0][i] = parts[0], p[1][i] = parts[1], p[2][i] = parts[2];
        }
    }
}

template <int N> __device__ __forceinline__ void rescale(float (&o)[N], const float (&alpha)[2])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        o[i] *= alpha[i / 2 % 2];
    }
}
