/*
 * helper_sm90.cuh: a warpgroup beside those that own keys (ordered_sm90.cuh), in kernels with
 * dropout whose tiles leave it the registers. It finds what dropout drops, a tile ahead, and
 * computes dQ = dS K, half of a tile after the other. So the others, whose instructions decide the
 * time, have a third less of them. Named barriers beside those of turns_sm90.cuh:
 *
 *     SCORES          both warpgroups: dS of a tile is there    the helper
 *     SPACE + group   the helper: that dS has been read         the warpgroup, before the next dS
 *
 * Bits of a tile lie in one of two places. An mbarrier of each warpgroup says that they are there;
 * behind SCORES of the tile they have been read.
 */
#pragma once
#include "cuda/kernel/backward/steps_sm90.cuh"
#include "cuda/kernel/backward/turns_sm90.cuh"

enum { SPACE = 3, SCORES = 6 };

/* Addresses: where thread number 0 of the 256 has its two words of tile n; the barrier of the first
 * warpgroup, two before that of the other one. */
__device__ __forceinline__ uint32_t bits_at(uint32_t n)
{
    __shared__ uint2 bits[2][256];
    return ptx::shared_address(bits[n % 2]);
}
__device__ __forceinline__ uint32_t bits_full(uint32_t n)
{
    __shared__ uint64_t full[4];
    return ptx::shared_address(&full[n % 2]);
}
/* One thread. */
__device__ __forceinline__ void init_bits()
{
    for (int n = 0; n < 2; n++) {
        ptx::mbarrier_init(bits_full(n), HELPER_WARPS);
        ptx::mbarrier_init(bits_full(n) + 16, HELPER_WARPS);
    }
    ptx::fence_mbarrier_init();
}

__device__ __forceinline__ void give_space()
{
    ptx::barrier_arrive(SPACE, 256);
    ptx::barrier_arrive(SPACE + 1, 256);
}

/* A thread's part of a tile, as number `thread` of a warpgroup has it. */
template <class S>
__device__ __forceinline__ StepTile helped_tile(const attn_cuda_backward_params &a,
                                                const OrderedItem &o, const TileWalk &at, int group)
{
    const int lane = thread_number() % 32, warp = thread_number() / 32 % 4;
    return {a,
            o.item.sequence,
            o.first_head + at.head,
            (int)o.item.first + 64 * group + 16 * warp + lane / 4,
            at.tile * S::STEP + lane % 4 * 2,
            0,
            o.band,
            false};
}

/* Finds the bits of tile n, both words of each thread of a warpgroup after the other's. */
template <class S>
__device__ __forceinline__ void find_bits(const attn_cuda_backward_params &a, const OrderedItem &o,
                                          const TileWalk &at, uint32_t n)
{
    static_assert(S::STEP == 128, "two words of each thread of a warpgroup");
    uint4 call = {};
    const bool on = a.grads.problem.dropout.on,
               even = on && helped_tile<S>(a, o, at, 0).first_call(call);
#pragma unroll 1
    for (int group = 0; group < 2; group++, call.x += attn_dropout_keys(64)) {
        uint32_t words[2] = {};
        if (even) {
            find_calls(a, call, words);
        } else if (on) {
            helped_tile<S>(a, o, at, group).find_one_by_one(words);
        }
        ptx::store_shared_8(bits_at(n) + (128 * group + thread_number() % 128) * 8, words[0],
                            words[1]);
        __syncwarp();
        if (thread_number() % 32 == 0) {
            ptx::mbarrier_arrive(bits_full(n) + 16 * group);
        }
    }
}

/* Gets what the helper found of tile n. A warpgroup. */
template <int WORDS>
__device__ __forceinline__ void take_bits(uint32_t n, int group, uint32_t (&words)[WORDS])
{
    ptx::mbarrier_wait(bits_full(n) + 16 * group, n / 2 & 1);
    const float2 both = ptx::load_shared_8(bits_at(n) + (thread_number() - 128) * 8);
    words[0] = __float_as_uint(both.x), words[WORDS - 1] = __float_as_uint(both.y);
}

/* dQ and bits of an item with an even or odd number. Returns whether there is one. The helper. */
template <class S>
__device__ __forceinline__ bool help(const attn_cuda_backward_params &a,
                                     const GradMemory<S> &memory, const OrderedItem &o,
                                     uint32_t odd)
{
    ptx::mbarrier_wait(memory.keys_full(), odd);
    const uint32_t end = o.end();
    uint32_t n = o.from;
    TileWalk at(o.blocks);
    if (n < end) {
        give_space();
    }
#pragma unroll 1
    for (uint32_t found = n; n < end; n++) {
#pragma unroll 1
        for (; found < end && found < n + 2; found++, at.next(o.blocks)) {
            find_bits<S>(a, o, at, found);
        }
        ptx::barrier_sync(SCORES, 384);
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            QuerySums<S> query;
            wgmma::fence();
            query.issue(memory.scores(), memory.fixed(0), half);
            wgmma::wait<0>();
            wgmma::hold(query.dq);
            if (half == 0) {
                ptx::mbarrier_wait(memory.room(n + 1), ((n + 1) / 2 & 1) ^ 1); /* of n - 1 */
            } else if (n + 1 < end) {
                give_space();
            }
            query.store(memory.sums() + (4 * half + thread_number() / 32 % 4) * 8 * 512 +
                        thread_number() % 32 * 16);
        }
        ptx::fence_proxy_async();
        __syncwarp();
        if (thread_number() % 32 == 0) {
            ptx::mbarrier_arrive(memory.done(n));
        }
    }
    const bool last = o.last;
    __syncwarp();
    if (thread_number() % 32 == 0) {
        ptx::mbarrier_arrive(memory.keys_empty());
    }
    return !last;
}
