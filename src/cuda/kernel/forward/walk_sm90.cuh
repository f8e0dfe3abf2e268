/*
 * walk_sm90.cuh: the order in which forward_sm90 takes an item's blocks of keys. They run from
 * right to left; but with ALiBi alone, where rows see keys on both sides, from the rows' own
 * positions to the left and then from there to the right, so that scores decline on both ways and
 * bases hardly move:
 *
 *     blocks    lo  ..  lo + left   lo + left + 1  ..  last
 *     order     left  ..  0         left + 1  ..  count - 1
 */
#pragma once
#include "cuda/kernel/forward/shape_sm90.cuh"

template <class S, bool CENTRED = S::SCORES == ATTN_CUDA_SLOPED> struct Walk {
    int last;

    /* b: the item's blocks, or those that some of its rows see. */
    __device__ __forceinline__ Walk(const attn_cuda_forward_params &, const Item &, const Blocks &b)
        : last(b.last)
    {
    }
    /* The block that is i-th in turn. */
    __device__ __forceinline__ int block(int i) const
    {
        return last - i;
    }
    __device__ __forceinline__ Walk uniform() const
    {
        return *this;
    }
};

template <class S> struct Walk<S, true> {
    int lo, left;

    __device__ __forceinline__ Walk(const attn_cuda_forward_params &a, const Item &item,
                                    const Blocks &b)
        : lo(b.last - b.count + 1), left(b.count - 1)
    {
        if (!attn_mask_differs(&a.problem)) {
            /* an item of folded heads has a part of these rows, and the same order */
            const int64_t end = item.first_row / S::BM * S::BM + S::BM - 1,
                          home = (end + item.sequence.diagonal) / S::BN;
            left = (int)attn_clamp(home - lo, 0, left);
        }
    }
    __device__ __forceinline__ int block(int i) const
    {
        return i > left ? lo + i : lo + left - i;
    }
    /* The same in uniform registers. Blocks were so before. */
    __device__ __forceinline__ Walk uniform() const
    {
        Walk walk = *this;
        walk.left = ptx::uniform(left);
        return walk;
    }
};
