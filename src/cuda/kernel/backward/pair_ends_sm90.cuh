/*
 * pair_ends_sm90.cuh: the end of an item of wide_sm90.cuh: its sums become dK and dV, or go on to
 * another item.
 */
#pragma once
#include "cuda/kernel/backward/hidden_sm90.cuh"
#include "cuda/kernel/backward/rests_sm90.cuh"

/* The thread's first key. */
__device__ __forceinline__ int64_t pair_key(const OrderedItem &o)
{
    return o.item.first + ptx::thread() / 32 % 4 * 16 + ptx::thread() % 32 / 4;
}

/* Adds the terms of the other group's rows: it has the same keys. */
template <class S>
__device__ __forceinline__ void add_other_terms(const GradMemory<S> &memory, float (&terms)[4],
                                                int group)
{
    const uint32_t at = memory.weights() + ptx::thread() % 128 * 16;
    ptx::barrier_sync(5, 256); /* products have read what lies there */
    ptx::store_shared_16(at + group * 2048, {__float_as_uint(terms[0]), __float_as_uint(terms[1]),
                                             __float_as_uint(terms[2]), __float_as_uint(terms[3])});
    ptx::barrier_sync(5, 256);
    const uint4 other = ptx::load_shared_16(at + (1 - group) * 2048);
    terms[0] += __uint_as_float(other.x), terms[1] += __uint_as_float(other.y);
    terms[2] += __uint_as_float(other.z), terms[3] += __uint_as_float(other.w);
}

/* Stores a group's columns of the sums. HIDES: a.hides_keys may be set; terms: sums of |dS| and of
 * P of the thread's two keys (range_sm90.cuh). Both warpgroups. */
template <class S, bool HIDES>
__device__ __forceinline__ void store_pair_item(const attn_cuda_backward_params &a,
                                                const GradMemory<S> &memory, const OrderedItem &o,
                                                KeySums<S> &sums, float (&terms)[4], int group)
{
    if (leave_sums(a, o, sums, terms) || (o.shares > 1 && !join_shares<S>(a, o, sums, terms))) {
        return;
    }
    if (HIDES && a.hides_keys) {
        drop_hidden(a, o.item, pair_key(o), sums.dk, sums.dv, terms);
    }
    bool bad = false;
    if constexpr (!S::BF16) {
        add_other_terms<S>(memory, terms, group);
        bad = has_faint_keys<S>(a, o.item, o.band, pair_key(o), {terms[0], terms[1]},
                                {terms[2], terms[3]});
    }
    sums.lower(o.unit, S::DROPS ? a.kept : 1);
    const attn_sequence &sequence = o.item.sequence;
    const int first = (int)o.item.first, left = (int)sequence.k_rows - first,
              batch = (int)sequence.tensor, head = (int)o.item.head, column = group * S::COLUMNS;
    const int64_t key = sequence.k_first + first;
    const attn_gradients &grads = a.grads;
    bad |= store_sums<S::BF16>(grads.dk, sums.dk, (float)grads.problem.scale, batch, key, head,
                               left, column);
    bad |= store_sums<S::BF16>(grads.dv, sums.dv, 1, batch, key, head, left, column);
    bad = ptx::barrier_any(5, 256, bad);
    if (ptx::thread() == 128 && left > 0) {
        note_block(a, grad_note(grads.problem, a.items, o.item, first), bad);
    }
}
