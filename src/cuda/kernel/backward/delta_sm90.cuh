/*
 * delta_sm90.cuh: LSE, and delta = dO.O - dLSE, of all rows, from 16-bit rows that are read 16
 * bytes at a time: D / 8 lanes a row.
 */
#pragma once
#include "cuda/backward/params.h"
#include "cuda/kernel/ptx/ptx.cuh"
#include "cuda/kernel/rows/score.cuh"

template <bool BF16> __device__ __forceinline__ float dot_8(const uint4 &x, const uint4 &y)
{
    const uint32_t a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 p = ptx::unpack_half<BF16>(a[i]), q = ptx::unpack_half<BF16>(b[i]);
        sum = fmaf(p.x, q.x, sum);
        sum = fmaf(p.y, q.y, sum);
    }
    return sum;
}

/* Reads 16 bytes of a row. Columns beyond the last, which a row of a tensor may hold, count as
 * 0. */
__device__ __forceinline__ uint4 load_8(const attn_tensor &t, int64_t b, int i, int h, int column)
{
    const uint4 none = {0, 0, 0, 0};
    return column < t.shape[3] ? *(const uint4 *)attn_at(&t, b, i, h, column) : none;
}

template <int DTYPE, int D>
__device__ __forceinline__ void delta_sm90(const attn_cuda_backward_params &a)
{
    constexpr int LANES = D / 8, ROWS = 256 / LANES;
    const attn_problem &p = a.grads.problem;
    const int64_t index = (int64_t)blockIdx.x * ROWS + threadIdx.x / LANES;
    const bool inside = index < a.rows;
    const uint32_t heads = (uint32_t)p.heads, rows = (uint32_t)p.q.shape[1];
    const uint64_t query = inside ? (uint64_t)index / heads : 0;
    const int h = (int)(index - (int64_t)query * heads), i = (int)(query % rows);
    const int64_t b = (int64_t)(query / rows);
    const int column = threadIdx.x % LANES * 8;
    float sum = 0;
    if (inside) {
        sum = dot_8<DTYPE == ATTN_BF16>(load_8(a.grads.d_o, b, i, h, column),
                                        load_8(p.o, b, i, h, column));
    }
#pragma unroll
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
        sum += __shfl_xor_sync(~0u, sum, lanes);
    }
    if (inside && column == 0) {
        const int64_t at = (b * heads + h) * rows + i;
        const float lse = load_real<float>(attn_at(&p.lse, b, i, h, 0), p.lse.dtype);
        if (a.grads.d_lse.data != NULL) {
            sum -= load_real<float>(attn_at(&a.grads.d_lse, b, i, h, 0), a.grads.d_lse.dtype);
        }
        ((float *)a.lse)[at] = lse == -INFINITY ? INFINITY : lse;
        ((float *)a.delta)[at] = sum;
    }
}
