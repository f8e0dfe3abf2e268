/*
 * biased_sm90.cuh: a bias of the inputs' type alone, as part of the exponents (softmax.cuh):
 *
 *     x = c (scale s + bias) - base
 *
 * Each warp copies its rows of a block to shared memory a block ahead (copy_rows), and reads them
 * between exponentials as matrices, whose layout is the accumulators'. A block that is looked at
 * has its bias added before. Other types of a bias, and a bias beside other steps, have kernels
 * that ask for each step (steps_sm90.cuh).
 */
#pragma once
#include "cuda/kernel/forward/steps_sm90.cuh"
#include "cuda/kernel/ptx/tensor.cuh"

template <bool BF16> struct BiasedExponents : Linear {
    float scale;
    uint32_t at;         /* the lane's row of the first matrices of the block's bias */
    bool looked = false; /* the block is looked at */
    uint32_t words[4];   /* bias of the last 8 accumulators that were asked for */

    __device__ __forceinline__ BiasedExponents(float c_, float scale_, uint32_t at_)
        : Linear{c_}, scale(scale_), at(at_)
    {
    }
    /* The bias of accumulator i. Asked for in order. */
    __device__ __forceinline__ float bias(int i)
    {
        if (i % 8 == 0) {
            mma::load_4<false>(words, at ^ 4 * i);
        }
        const float2 both = ptx::unpack_half<BF16>(words[i % 8 / 2]);
        return i % 2 ? both.y : both.x;
    }
    template <bool QUICK> __device__ __forceinline__ float exponent(float s, int i, float from)
    {
        return fmaf(QUICK ? fmaf(s, scale, bias(i)) : s, c, from);
    }
    __device__ __forceinline__ bool beyond() const
    {
        return looked;
    }
};

template <class S> struct Steps<S, ATTN_CUDA_BIASED> : NoSteps, MaskSteps<S> {
    using Rows = MaskSteps<S>; /* room and notes */
    static constexpr int ROW = 2 * S::BN;

    __device__ __forceinline__ Steps(const Memory<S> &memory_) : Rows(memory_)
    {
    }
    template <class Warp>
    __device__ __forceinline__ void begin(const attn_cuda_forward_params &a, const Item &item,
                                          const Warp &warp)
    {
        if (threadIdx.x % 32 == 0) {
            StepsNote &x = Rows::memory.note(threadIdx.x / 32 - 4);
            x.bias =
                Rows::first(a.problem.bias, item, (int)item.first_row + warp.first, &x.bias_rows);
        }
        Rows::begin_room(a);
    }
    __device__ __forceinline__ uint32_t tile(int key) const
    {
        return Rows::tile() + key / S::BN % 2 * (16 * ROW);
    }
    __device__ __forceinline__ void copy_bias(const attn_cuda_forward_params &a, int key) const
    {
        const StepsNote &x = Rows::note();
        copy_rows<ROW>(tile(key), x.bias, 2 * (int64_t)key, 2 * a.problem.bias.shape[3],
                       a.steps_sm90.bias_row, x.bias_rows);
    }
    __device__ __forceinline__ void begin_copies(const attn_cuda_forward_params &a, int key) const
    {
        copy_bias(a, key);
        ptx::copy_async_commit();
    }
    /* Starts copying the bias of the block after the one that begins at `key`. The block before it
     * is done. */
    __device__ __forceinline__ void fetch_copies(const attn_cuda_forward_params &a, int key,
                                                 bool more) const
    {
        __syncwarp(); /* all lanes have read it */
        if (more) {
            copy_bias(a, key - S::BN);
        }
        ptx::copy_async_commit();
    }
    /* Waits for the block's own bias. */
    __device__ __forceinline__ void fetch_mask(const attn_cuda_forward_params &, int) const
    {
        ptx::copy_async_wait<1>();
        __syncwarp();
    }
    /* Lane l reads row l % 8 of matrix l / 8: rows 0 .. 7 and 8 .. 15 of 8 columns, then of the 8
     * columns after them. */
    __device__ __forceinline__ BiasedExponents<S::BF16> exponents(const attn_cuda_forward_params &a,
                                                                  int key) const
    {
        const int lane = ptx::opaque(threadIdx.x % 32),
                  row = a.steps_sm90.bias_row == 0 ? 0 : lane % 16;
        return {a.scale_log2, a.steps_sm90.bias_factor, tile(key) + row_place<ROW>(row, lane / 16)};
    }
    __device__ __forceinline__ bool look(const BiasedExponents<S::BF16> &) const
    {
        return false;
    }
    /* A bias of -inf masks any product, also NaN. */
    template <int N>
    __device__ __forceinline__ void prepare(BiasedExponents<S::BF16> &e, int, float (&s)[N]) const
    {
        e.looked = true;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float bias = e.bias(i);
            s[i] = bias == -INFINITY ? bias : fmaf(s[i], e.scale, bias);
        }
    }
    __device__ __forceinline__ void learn(const BiasedExponents<S::BF16> &)
    {
    }
};
