/*
 * shares_sm90.cuh: sums of dK and dV over the heads of a group that several items have, a share
 * each (ordered_sm90.cuh). A block of keys has a turn: the number of shares whose sums it has, in
 * f32 in global memory. The last share comes first; share 0 keeps the result.
 */
#pragma once
#include "cuda/kernel/backward/turns_sm90.cuh"

/* Four sums are (4 i .. 4 i + 3) of a thread: number 256 i from the thread's first ones on. */
template <int N> __device__ __forceinline__ void add_stored(float (&sum)[N], const float4 *from)
{
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const float4 x = from[256 * i];
        sum[4 * i] += x.x, sum[4 * i + 1] += x.y, sum[4 * i + 2] += x.z, sum[4 * i + 3] += x.w;
    }
}

template <int N> __device__ __forceinline__ void store_added(float4 *to, const float (&sum)[N])
{
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        to[256 * i] = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
    }
}

/* Fours of sums of dK of the item's threads; where the thread's first one is. */
template <class S> constexpr int STORED_EACH = S::COLUMNS / 8 * 256;
template <class S>
__device__ __forceinline__ float4 *stored_sums(const attn_cuda_backward_params &a,
                                               const OrderedItem &o)
{
    return (float4 *)(a.key_sums + o.key_place * ATTN_GRAD_SHARE_FLOATS(S::D, S::FIXED)) +
           ptx::thread() - 128;
}

/* Says that the item's sums are there. Both warpgroups. */
__device__ __forceinline__ void publish_sums(const attn_cuda_backward_params &a,
                                             const OrderedItem &o, uint32_t turn)
{
    ptx::barrier_sync(5, 256); /* all have stored */
    if (ptx::thread() == 128) {
        ptx::store_release(a.key_turns + o.key_place, turn);
    }
}

/* Adds the sums of the shares behind the item's to its own, and stores them for the next one, if
 * there is one. Returns whether there is none. terms: further sums of the thread, for f16. Both
 * warpgroups. */
template <class S>
__device__ __forceinline__ bool join_shares(const attn_cuda_backward_params &a,
                                            const OrderedItem &o, KeySums<S> &sums,
                                            float (&terms)[4])
{
    constexpr int EACH = STORED_EACH<S>;
    const uint32_t behind = o.shares - 1 - (uint32_t)o.item.share;
    float4 *const at = stored_sums<S>(a, o);
    if (behind > 0) {
        while (ptx::load_acquire(a.key_turns + o.key_place) != behind) {
        }
        add_stored(sums.dk, at);
        add_stored(sums.dv, at + EACH);
        if constexpr (!S::BF16) {
            add_stored(terms, at + 2 * EACH);
        }
    }
    if (o.item.share == 0) {
        return true;
    }
    store_added(at, sums.dk);
    store_added(at + EACH, sums.dv);
    if constexpr (!S::BF16) {
        store_added(at + 2 * EACH, terms);
    }
    publish_sums(a, o, behind + 1);
    return false;
}
