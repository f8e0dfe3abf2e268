/*
 * delta_sm90.cuh: LSE, and delta = dO.O - dLSE, of all rows, from 16-bit rows that are read 16
 * bytes at a time: D / 8 lanes a row. For f16 the sizes of dO and O as well (range_sm90.cuh).
 */
#pragma once
#include "cuda/kernel/backward/clear_sm90.cuh"
#include "cuda/kernel/backward/range_sm90.cuh"
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
    constexpr bool BF16 = DTYPE == ATTN_BF16;
    constexpr int SUMS = BF16 ? 1 : 3;
    clear_words(a);
    float sums[3] = {}; /* dO.O, and for f16 dO.dO, O.O */
    if (inside) {
        const uint4 d_o = load_8(a.grads.d_o, b, i, h, column), o = load_8(p.o, b, i, h, column);
        sums[0] = dot_8<BF16>(d_o, o);
        if constexpr (!BF16) {
            sums[1] = dot_8<BF16>(d_o, d_o), sums[2] = dot_8<BF16>(o, o);
        }
    }
#pragma unroll
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
#pragma unroll
        for (int n = 0; n < SUMS; n++) {
            sums[n] += __shfl_xor_sync(~0u, sums[n], lanes);
        }
    }
    if (inside && column == 0) {
        const int64_t at = (b * heads + h) * rows + i;
        const float lse = load_real<float>(attn_at(&p.lse, b, i, h, 0), p.lse.dtype);
        const float d_lse = load_d_lse<float>(a.grads, b, i, h);
        ((float *)a.lse)[at] = lse == -INFINITY ? INFINITY : lse;
        ((float *)a.delta)[at] = sums[0] - d_lse;
        if constexpr (!BF16) {
            note_sizes(a, b, i, h, at, lse, d_lse, sums[1], sums[2]);
        }
    }
}
