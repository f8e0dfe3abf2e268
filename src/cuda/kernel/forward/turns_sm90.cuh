/*
 * turns_sm90.cuh: how the consumer warpgroups of forward_sm90 take turns at the tensor cores, and
 * how one passes over blocks of which its rows see nothing.
 */
#pragma once
#include "cuda/kernel/forward/shape_sm90.cuh"

/* threadIdx.x, of which nothing is kept over the tile loop where the shape asks for it. */
template <class S, int LEAN> __device__ __forceinline__ auto lean_thread()
{
    if constexpr (S::MASKED && S::LEAN >= LEAN) {
        return (uint32_t)ptx::opaque(threadIdx.x); /* cheaper to divide */
    } else {
        return (int)(S::LEAN >= LEAN ? ptx::opaque(threadIdx.x) : threadIdx.x);
    }
}

/* Turns at issuing products: that of a group, the own one, begins; it passes to the next group. */
template <class S> __device__ __forceinline__ void begin_turn(int group = threadIdx.x / 128)
{
    if (S::TURNS) {
        ptx::barrier_sync(group, 256);
    }
}

template <class S> __device__ __forceinline__ void end_turn()
{
    if (S::TURNS) {
        ptx::barrier_arrive(1 + lean_thread<S, 1>() / 128 % S::GROUPS, 256);
    }
}

/* Waits for all warps of the group. Products do that by themselves. */
template <class S> __device__ __forceinline__ void meet()
{
    ptx::barrier_sync(S::GROUPS + threadIdx.x / 128, 128);
}

/* Passes over blocks from .. to - 1 of the item, of which the group's rows see nothing. Each but an
 * item's first is a turn. The warps meet before one thread gives a slot back: else it may be filled
 * again while a slow warp still waits for the fill before, and that warp, which sees parities
 * alone, waits for ever. */
template <class S>
__device__ __forceinline__ void pass_blocks(const Memory<S> &memory, uint32_t number, int from,
                                            int to)
{
#pragma unroll 1
    for (int i = from; i < to; i++) {
        const uint32_t n = number + i;
        ptx::mbarrier_wait(memory.k_full(n), tile_parity<S>(n));
        if (i > 0) {
            begin_turn<S>();
            end_turn<S>();
        }
        meet<S>();
        if (threadIdx.x % 128 == 0) {
            ptx::mbarrier_arrive(memory.k_empty(n));
        }
        ptx::mbarrier_wait(memory.v_full(n), tile_parity<S>(n));
        meet<S>();
        if (threadIdx.x % 128 == 0) {
            ptx::mbarrier_arrive(memory.v_empty(n));
        }
    }
}
