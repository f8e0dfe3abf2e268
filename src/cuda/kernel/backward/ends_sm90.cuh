/*
 * ends_sm90.cuh: the end of an item of ordered_sm90.cuh: its sums become dK and dV, or go on to
 * another item.
 */
#pragma once
#include "cuda/kernel/backward/hidden_sm90.cuh"
#include "cuda/kernel/backward/rests_sm90.cuh"
#include "cuda/kernel/backward/round_sm90.cuh"

/* The thread's first key. */
__device__ __forceinline__ int64_t own_key(const OrderedItem &o, int group)
{
    return o.item.first + 64 * group + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
}

/* Stores the sums of a warpgroup. HIDES: a.hides_keys may be set; sizes: range_sm90.cuh;
 * bad_values: what give_values said. Both warpgroups. */
template <class S, bool HIDES>
__device__ __forceinline__ void
store_item(const attn_cuda_backward_params &a, const GradMemory<S> &memory, const OrderedItem &o,
           KeySums<S> &sums, float2 sizes, int group, int bad_values)
{
    float2 weights = {0, 0};
    if constexpr (!S::BF16 && S::DROPS) {
        weights = shared_terms(0);
    }
    float terms[4] = {sizes.x, sizes.y, weights.x, weights.y};
    if (leave_sums(a, o, sums, terms) || (o.shares > 1 && !join_shares<S>(a, o, sums, terms))) {
        return end_queries<S>(a, o, group);
    }
    if (HIDES && a.hides_keys) {
        drop_hidden(a, o.item, own_key(o, group), sums.dk, sums.dv, terms);
    }
    const bool faint = has_faint_keys<S>(a, o.item, o.band, own_key(o, group), {terms[0], terms[1]},
                                         {terms[2], terms[3]});
    sums.lower(o.unit, S::DROPS ? a.kept : 1);
    const int first = (int)o.item.first + 64 * group, left = (int)o.item.sequence.k_rows - first;
    const bool bad = any_of_group(
        group, store_keys<S>(a, memory, o, sums, group, first, left, bad_values) || faint);
    if (threadIdx.x % 128 == 0 && left > 0) {
        note_block(a, grad_note(a.grads.problem, a.items, o.item, first), bad);
    }
}
