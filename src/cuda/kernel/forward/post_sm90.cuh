/*
 * post_sm90.cuh: the posts of forward_sm90's producer: which item of the CTA comes next, or comes
 * once more (clean_sm90.cuh), and its blocks. Of ragged items: ragged_sm90.cuh.
 */
#pragma once
#include "cuda/kernel/forward/clean_sm90.cuh"

/* The item after item `index` of this CTA. With a counter in the GPU's memory a CTA takes the next
 * free item. Without one each CTA has its share: every second round of the grid runs backwards, and
 * each two rounds start one further, so heavy and light items even out. */
__device__ __forceinline__ uint32_t following_item(uint32_t *counter, uint32_t index)
{
    if (counter != NULL) {
        return gridDim.x + ptx::atomic_add(counter, 1);
    }
    const uint32_t ctas = gridDim.x, round = index / ctas, place = index - round * ctas,
                   mirrored = ctas - 1 - place;
    return (round + 1) * ctas + (round & 1 ? (mirrored + 1 < ctas ? mirrored + 1 : 0) : mirrored);
}

constexpr uint32_t NO_ITEM = ~0u;

/* Finds the item that the n-th post repeats: that of post n - 2, whose place it takes; if no item
 * is left, that of post n - 1, after its end. One thread, or a warp where items are ragged. */
template <class S>
__device__ __forceinline__ uint32_t take_again(const Memory<S> &memory, uint32_t n, bool left)
{
    if (!left && n > 0 && memory.post(n).again == 0) {
        n--;
        ptx::mbarrier_wait(memory.post_empty(n), parity(n));
    }
    Post &post = memory.post(n);
    const uint32_t item = post.again != 0 ? post.item_index : NO_ITEM;
    if (S::RAGGED) {
        __syncwarp(); /* all lanes have read it */
    }
    if (!S::RAGGED || threadIdx.x % 32 == 0) {
        post.again = 0;
    }
    if (S::RAGGED) {
        __syncwarp(); /* before it is read again */
    }
    return item;
}

/* Computes bands and blocks of a post whose item is there. */
template <class S>
__device__ __forceinline__ void post_blocks(const attn_cuda_forward_params &a, Post &post)
{
    post.item.band = attn_mask_band(&a.problem, &post.item.sequence);
    post.blocks = key_blocks(post.item.band, (int)post.item.first_row, S::BM, S::BN);
}

/* Posts item `index`, an earlier one again, or the end. By TMA. */
template <class S>
__device__ __forceinline__ void post_whole(const attn_cuda_forward_params &a,
                                           const Memory<S> &memory, uint32_t n, uint32_t index)
{
    Post &post = memory.post(n);
    const bool left = index < (uint32_t)a.schedule.items;
    const uint32_t again = take_again(memory, n, left), item = again != NO_ITEM ? again : index;
    post.clean = again != NO_ITEM, post.end = !left && !post.clean;
    post.index = index;
    if (!post.end) {
        post.item_index = item;
        whole_item(a.problem, a.schedule, item, post.item);
        post_blocks<S>(a, post);
    }
}

/* Posts item `index`, the first one after it that is not empty, or the end. By threads. */
template <class S>
__device__ __forceinline__ void post_filled(const attn_cuda_forward_params &a, Post &post,
                                            uint32_t index)
{
    for (;; index = following_item(a.counter, index)) {
        post.end = index >= (uint32_t)a.schedule.items;
        if (post.end) {
            break;
        }
        if (__builtin_expect(a.whole, true)) {
            whole_item(a.problem, a.schedule, index, post.item);
        } else {
            fill_item(a, index, post.item);
        }
        if (!post.item.empty) {
            post_blocks<S>(a, post);
            break;
        }
    }
    post.index = index;
}

/* Posts the CTA's n-th item, or the end. One thread. */
template <class S>
__device__ __forceinline__ void post_item(const attn_cuda_forward_params &a,
                                          const Memory<S> &memory, uint32_t n)
{
    Post &post = memory.post(n); /* filled in place: registers are few here */
    const Post &before = memory.post(n - 1);
    const uint32_t index = n == 0 ? blockIdx.x : before.index;
    ptx::mbarrier_wait(memory.post_empty(n), parity(n) ^ 1);
    post.tiles = n == 0 ? 0 : before.tiles + (before.blocks.count > 0);
    post.nonfinite = false, post.tail = 0;
    if constexpr (S::TMA) {
        post_whole<S>(a, memory, n, index);
    } else {
        post_filled<S>(a, post, index);
    }
    ptx::mbarrier_arrive(memory.post_full(n));
}
