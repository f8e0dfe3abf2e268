/*
 * load.cuh: Q, K and V into shared memory without the TMA: for strides and alignments that it cannot take, and for
 * sequences that end inside a tensor, whose padding must not be loaded. Same place, same swizzle (wgmma.cuh), so the
 * result has the same bits. Used by the producer warpgroup.
 */
#pragma once
#include "cuda/params.h"
#include "ptx.cuh"

/* Eight elements gathered one by one. */
__device__ __forceinline__ uint4 gather_8(const char *from, int64_t step, int count)
{
    uint32_t w[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (i < count) {
            w[i / 2] |= (uint32_t) * (const uint16_t *)(from + i * step) << (16 * (i % 2));
        }
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* ROWS x D elements of one head, the first at `base`; rows from `valid` on and missing columns are 0. */
template <int ROWS, int D>
__device__ __forceinline__ void load_rows(uint32_t to, const attn_tensor &t, const char *base, int valid, bool aligned)
{
    const int columns = (int)t.shape[3];
    const int64_t row_bytes = t.stride[1] * 2, step = t.stride[3] * 2;
#pragma unroll 1
    for (int piece = threadIdx.x; piece < ROWS * (D / 8); piece += 128) {
        int r = piece / (D / 8), p = piece % (D / 8);
        uint32_t place = to + p / 8 * (ROWS * 128) + r * 128 + ((p % 8 ^ r % 8) << 4);
        int count = r < valid ? min(max(columns - 8 * p, 0), 8) : 0;
        const char *from = base + r * row_bytes + 8 * p * step;
        if (aligned) {
            ptx::copy_async_16(place, count > 0 ? from : base, 2 * count);
        } else {
            ptx::store_shared_16(place, gather_8(from, step, count));
        }
    }
}
