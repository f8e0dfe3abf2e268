/*
 * forward_sm90.cuh: a CTA of forward_sm90: one warpgroup becomes the producer, the
 * others consumers.
 */
#pragma once
#include "cuda/kernel/forward/consume_sm90.cuh"
#include "cuda/kernel/forward/produce_sm90.cuh"
#include "cuda/kernel/forward/ragged_sm90.cuh"

template <class S> __device__ __forceinline__ void forward(const attn_cuda_forward_params &a)
{
    extern __shared__ unsigned char shared[];
    const uint32_t skip = -ptx::shared_address(shared) & 1023;
    const Memory<S> memory = {shared + skip, ptx::shared_address(shared) + skip};
    if (threadIdx.x == 0) {
        memory.init_barriers();
        if (S::TMA) {
            tma::prefetch_map(&a.q_map);
            tma::prefetch_map(&a.k_map);
            tma::prefetch_map(&a.v_map);
        }
    }
    __syncthreads();
    if (__shfl_sync(~0u, threadIdx.x / 128, 0) == 0) {
        ptx::registers_lower<S::PRODUCER_REGISTERS>();
        if constexpr (S::PARTS > 1) {
            produce<S>(a, memory, SplitLoader<S>{a, memory});
        } else if constexpr (!S::TMA) {
            produce<S>(a, memory, ThreadLoader<S>{a, memory});
        } else if constexpr (S::RAGGED) {
            produce_ragged<S>(a, memory);
        } else {
            const int warp = ptx::uniform(threadIdx.x / 32);
            if (threadIdx.x == 0) {
                produce<S>(a, memory, TmaLoader<S>{a, memory});
            } else if (warp == 1) {
                complete_posts<S>(a, memory);
            } else if (warp >= FIRST_CLEANER) {
                clean_tiles<S>(a, memory);
            }
        }
    } else {
        ptx::registers_raise<S::REGISTERS>();
        consume<S>(a, memory);
    }
}

/* A kernel for a scale beside one thing alone: softcap, ALiBi, a mask or a bias. */
#define ATTN_FORWARD_SM90_ALONE(loads, scores, name, dtype, d, groups, bn, registers, turns)      \
    extern "C" __global__ __launch_bounds__(128 * (groups + 1), 1) void attn_forward_sm90_##name( \
        const __grid_constant__ attn_cuda_forward_params a)                                       \
    {                                                                                             \
        forward<Shape<dtype, d, groups, bn, registers, turns, loads, scores>>(a);                 \
    }
/* The same for whole sequences, for others, and for keys in pages. */
#define ATTN_FORWARD_SM90_EACH(scores, name, ...)                                 \
    ATTN_FORWARD_SM90_ALONE(ATTN_CUDA_WHOLE, scores, name, __VA_ARGS__)           \
    ATTN_FORWARD_SM90_ALONE(ATTN_CUDA_RAGGED, scores, name##_ragged, __VA_ARGS__) \
    ATTN_FORWARD_SM90_ALONE(ATTN_CUDA_PAGED, scores, name##_paged, __VA_ARGS__)
