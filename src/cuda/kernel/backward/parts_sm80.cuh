/*
 * parts_sm80.cuh: rows of f32, f16 or bf16 into shared memory as the three bf16 parts of f32
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
    bool aligned;

    __device__ __forceinline__ bool is_f32() const
    {
        return tensor.dtype == ATTN_F32;
    }
    /* Four elements as they lie. */
    __device__ __forceinline__ uint4 four(int row, int column) const
    {
        const int count = row < there ? min(max((int)tensor.shape[3] - column, 0), 4) : 0;
        const int64_t size = is_f32() ? 4 : 2, step = tensor.stride[3] * size;
        const char *from = first + row * tensor.stride[1] * size + column * step;
        if (aligned && count == 4) {
            if (is_f32()) {
                return *(const uint4 *)from;
            }
            const uint2 x = *(const uint2 *)from;
            return make_uint4(x.x, x.y, 0, 0);
        }
        return is_f32() ? gather_16<4>(from, step, count) : gather_16<2>(from, step, count);
    }
    /* The same in f32. */
    __device__ __forceinline__ uint4 widened(const uint4 &x) const
    {
        if (is_f32()) {
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

/* Loads ROWS x D elements, and splits them. A thread has so many fours under way at once. */
template <int ROWS, int D, int THREADS>
__device__ __forceinline__ void load_parts(uint32_t to, const MmaRows &x)
{
    constexpr int FOURS = ROWS * D / 4 / THREADS, SIDE_BY_SIDE = 4;
    static_assert(FOURS % SIDE_BY_SIDE == 0, "whole rounds");
    const Fours<D, THREADS> fours(threadIdx.x);
#pragma unroll 1
    for (int n = 0; n < FOURS; n += SIDE_BY_SIDE) {
        uint4 bits[SIDE_BY_SIDE];
#pragma unroll
        for (int i = 0; i < SIDE_BY_SIDE; i++) {
            bits[i] = x.four(fours.row + (n + i) * fours.STEP, fours.column);
        }
#pragma unroll
        for (int i = 0; i < SIDE_BY_SIDE; i++) {
            store_parts(fours.template place<ROWS>(to, n + i), ROWS * D * 2, x.widened(bits[i]));
        }
    }
}
