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

/* A row of O: batch, row, head. */
struct RowPlace {
    int64_t b;
    int i, h;

    __device__ __forceinline__ RowPlace(const attn_problem &p, int64_t index)
    {
        const int64_t query = divide(index, p.heads);
        h = (int)(index - query * p.heads);
        b = divide(query, p.q.shape[1]);
        i = (int)(query - b * p.q.shape[1]);
    }
};

/* Reads 16 bytes of row `index` of all heads of all queries. Columns beyond the last, which a row
 * of a tensor may hold, count as 0. */
__device__ __forceinline__ uint4 load_8(const attn_problem &p, const attn_tensor &t, int64_t index,
                                        int column)
{
    const uint4 none = {0, 0, 0, 0};
    if (column >= t.shape[3]) {
        return none;
    }
    if (t.stride[1] == p.heads * t.stride[2] && t.stride[0] == p.q.shape[1] * t.stride[1]) {
        return *(const uint4 *)((const char *)t.data + (index * t.stride[2] + column) * 2);
    }
    const RowPlace at(p, index);
    return *(const uint4 *)attn_at(&t, at.b, at.i, at.h, column);
}

/* LSE and delta of a row. sums: dO.O, and for f16 dO.dO, O.O. */
template <bool BF16>
__device__ __forceinline__ void end_delta(const attn_cuda_backward_params &a, int64_t index,
                                          const float (&sums)[BF16 ? 1 : 3])
{
    const attn_problem &p = a.grads.problem;
    const RowPlace row(p, index);
    const int64_t at = (row.b * p.heads + row.h) * p.q.shape[1] + row.i;
    const float lse = load_real<float>(attn_at(&p.lse, row.b, row.i, row.h, 0), p.lse.dtype),
                d_lse = load_d_lse<float>(a.grads, row.b, row.i, row.h);
    ((float *)a.lse)[at] = lse == -INFINITY ? INFINITY : lse;
    ((float *)a.delta)[at] = sums[0] - d_lse;
    if constexpr (!BF16) {
        note_sizes(a, row.b, row.i, row.h, at, lse, d_lse, sums[1], sums[2]);
    }
}

/* Of 8192 / D rows: their sums by D / 8 lanes each, the rest by a thread each, since
 * places of rows take quotients. */
template <int DTYPE, int D>
__device__ __forceinline__ void delta_sm90(const attn_cuda_backward_params &a)
{
    constexpr bool BF16 = DTYPE == ATTN_BF16;
    constexpr int LANES = D / 8, ROWS = 256 / LANES, EACH = 4, SUMS = BF16 ? 1 : 3;
    __shared__ float shared[SUMS][EACH * ROWS];
    const attn_problem &p = a.grads.problem;
    const int64_t first = (int64_t)blockIdx.x * (EACH * ROWS);
    const int row = threadIdx.x / LANES, column = threadIdx.x % LANES * 8;
    const uint4 none = {0, 0, 0, 0};
    uint4 d_o[EACH], o[EACH];
    ptx::begin_next_launch();
    clear_words(a);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const int64_t index = first + k * ROWS + row;
        const bool inside = index < a.rows;
        d_o[k] = inside ? load_8(p, a.grads.d_o, index, column) : none;
        o[k] = inside ? load_8(p, p.o, index, column) : none;
    }
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        float sums[3] = {dot_8<BF16>(d_o[k], o[k])};
        if constexpr (!BF16) {
            sums[1] = dot_8<BF16>(d_o[k], d_o[k]), sums[2] = dot_8<BF16>(o[k], o[k]);
        }
#pragma unroll
        for (int n = 0; n < SUMS; n++) {
#pragma unroll
            for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
                sums[n] += __shfl_xor_sync(~0u, sums[n], lanes);
            }
            if (column == 0) {
                shared[n][k * ROWS + row] = sums[n];
            }
        }
    }
    __syncthreads();
    const int64_t index = first + threadIdx.x;
    if (threadIdx.x < EACH * ROWS && index < a.rows) {
        float sums[SUMS];
#pragma unroll
        for (int n = 0; n < SUMS; n++) {
            sums[n] = shared[n][threadIdx.x];
        }
        end_delta<BF16>(a, index, sums);
    }
}
