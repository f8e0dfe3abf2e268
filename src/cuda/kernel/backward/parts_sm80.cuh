/*
 * parts_sm80.cuh: rows of f32, f16 or bf16 into shared memory, as f32 or as its three bf16 parts
 * (mma.cuh), by all threads of a backward_sm80 kernel, by way of registers. f16 has two parts that
 * are not 0, bf16 one.
 */
#pragma once
#include "cuda/kernel/load/load.cuh"

/* Rows of one head of a tensor. */
struct MmaRows {
    const attn_tensor &tensor;
    const char *first;
    int there;
    bool aligned; /* to be copied as they are, 16 bytes at a time */

    /* Four elements as they lie. */
    __device__ __forceinline__ uint4 four(int row, int column) const
    {
        const int count = row < there ? min(max((int)tensor.shape[3] - column, 0), 4) : 0;
        const int size = tensor.dtype == ATTN_F32 ? 4 : 2;
        const int64_t step = tensor.stride[3] * size;
        const char *from = first + row * tensor.stride[1] * size + column * step;
        if (count < 4 || step != size || (uint64_t)from % (4 * size) != 0) {
            return size == 4 ? gather_16<4>(from, step, count) : gather_16<2>(from, step, count);
        }
        if (size == 4) {
            return *(const uint4 *)from;
        }
        const uint2 x = *(const uint2 *)from;
        return make_uint4(x.x, x.y, 0, 0);
    }
    /* The same in f32. */
    __device__ __forceinline__ uint4 widened(const uint4 &x) const
    {
        if (tensor.dtype == ATTN_F32) {
            return x;
        }
        return tensor.dtype == ATTN_BF16 ? widened<true>(x) : widened<false>(x);
    }
    template <bool BF16> static __device__ __forceinline__ uint4 widened(const uint4 &x)
    {
        const float2 low = ptx::unpack_half<BF16>(x.x), high = ptx::unpack_half<BF16>(x.y);
        return make_uint4(__float_as_uint(low.x), __float_as_uint(low.y), __float_as_uint(high.x),
                          __float_as_uint(high.y));
    }
};

/* Calls put(n, x) with each n-th four of the thread, of ROWS x D elements, in f32. So many fours
 * are under way at once. */
template <int ROWS, int D, int THREADS, class Put>
__device__ __forceinline__ void for_each_four(const MmaRows &x, const Put &put)
{
    constexpr int FOURS = ROWS * D / 4 / THREADS, SIDE_BY_SIDE = 4;
    static_assert(FOURS % SIDE_BY_SIDE == 0, "whole rounds");
    const Fours<D, THREADS> fours(ptx::opaque(threadIdx.x));
#pragma unroll 1
    for (int n = 0; n < FOURS; n += SIDE_BY_SIDE) {
        uint4 bits[SIDE_BY_SIDE];
#pragma unroll
        for (int i = 0; i < SIDE_BY_SIDE; i++) {
            bits[i] = x.four(fours.row + (n + i) * fours.STEP, fours.column);
        }
#pragma unroll
        for (int i = 0; i < SIDE_BY_SIDE; i++) {
            put(n + i, x.widened(bits[i]));
        }
    }
}

/* Loads rows as parts. */
template <int ROWS, int D, int THREADS>
__device__ __forceinline__ void load_parts(uint32_t to, const MmaRows &x)
{
    const Fours<D, THREADS> fours(ptx::opaque(threadIdx.x));
    for_each_four<ROWS, D, THREADS>(x, [&](int n, const uint4 &four) {
        store_parts(fours.template place<ROWS>(to, n), ROWS * D * 2, four);
    });
}

/* Loads rows as f32, to where load_raw would. */
template <int ROWS, int D, int THREADS>
__device__ __forceinline__ void load_widened(uint32_t to, const MmaRows &x)
{
    for_each_four<ROWS, D, THREADS>(x, [&](int n, const uint4 &four) {
        ptx::store_shared_16(to + (threadIdx.x + n * THREADS) * 16, four);
    });
}
