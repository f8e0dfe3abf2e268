/*
 * rests_sm90.cuh: items in two parts (attn_cuda_grad_rests). Blocks of keys come in an order that
 * lets none wait for long (ordered_sm90.cuh), and the first keys, which most rows see under a
 * causal mask, come last: CTAs would end apart by up to such an item. So the last rows of some of
 * these blocks are items of their own, rests, ever shorter ones, behind all others. The part ahead
 * leaves its sums of dK and dV in f32 in global memory, and the rest begins with them: the bits are
 * those of a whole item. No other block waits for these rows: they are those of the last blocks to
 * add to dQ, and the rests of a head come in the order of its blocks.
 */
#pragma once
#include "cuda/kernel/backward/shares_sm90.cuh"

/* Loads sums, or makes them 0. */
template <int N>
__device__ __forceinline__ void load_stored(float (&sum)[N], const float4 *from, bool there)
{
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        ptx::load_or_clear(sum[i], sum[i + 1], sum[i + 2], sum[i + 3], from + 64 * i, there);
    }
}

/* The sums at the beginning of an item. Both warpgroups. */
template <class S>
__device__ __forceinline__ void begin_sums(const attn_cuda_backward_params &a, const OrderedItem &o,
                                           KeySums<S> &sums)
{
    sums.clear();
    if constexpr (S::RESTS) {
        const float4 *const at = stored_sums<S>(a, o);
        const bool there = o.part == GRAD_REST;
        while (there && ptx::load_acquire(a.key_turns + o.key_place) == 0) {
        }
        load_stored(sums.dk, at, there);
        load_stored(sums.dv, at + STORED_EACH<S>, there);
    }
    sums.hold_all();
}

/* Leaves the sums of a part to the rest. Returns whether the item is such a part. terms: further
 * sums, which the rest adds at its end (range_sm90.cuh). Both warpgroups. */
template <class S>
__device__ __forceinline__ bool leave_sums(const attn_cuda_backward_params &a, const OrderedItem &o,
                                           const KeySums<S> &sums, float (&terms)[4])
{
    if (!S::RESTS || o.part == GRAD_WHOLE) {
        return false;
    }
    float4 *const at = stored_sums<S>(a, o);
    if (o.part == GRAD_REST) {
        if constexpr (!S::BF16) {
            add_stored(terms, at + 2 * STORED_EACH<S>);
        }
        return false;
    }
    store_added(at, sums.dk);
    store_added(at + STORED_EACH<S>, sums.dv);
    if constexpr (!S::BF16) {
        store_added(at + 2 * STORED_EACH<S>, terms);
    }
    publish_sums(a, o, 1);
    return true;
}
