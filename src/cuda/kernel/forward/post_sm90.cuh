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

/* Computes the blocks that the rows of group g see. Maxima are taken in masked blocks alone. */
template <class S>
__device__ __forceinline__ void post_group(const attn_cuda_forward_params &a, Post &post, int g)
{
    const Item &item = post.item;
    const int each = S::RAGGED ? a.schedule.piece : 64, first = (int)item.first_row;
    const bool maxima = a.problem.row_max.data != NULL;
    const bool differ = maxima || post.blocks.any_masked() ||
                        first + (S::SHARED ? each : S::GROUPS * each) > item.band.rows;
    Blocks mine = post.blocks;
    if (differ) {
        mine = key_blocks(item.band, first + g * each, each, S::BN);
        if (S::RAGGED && a.schedule.splits > 1) {
            mine = mine.among(post.blocks);
        }
    }
    if (maxima) {
        mine.mask_all();
    }
    post.groups[g] = mine;
}

/* Computes how the item's rows may end, and where O and LSE of the first one lie. */
template <class S>
__device__ __forceinline__ void post_ending(const attn_cuda_forward_params &a, Post &post)
{
    const attn_sequence &s = post.item.sequence;
    const bool boxed = S::BOXED && a.o_boxed && !a.statistics && a.schedule.splits == 1;
    const bool masked = post.blocks.any_masked() || (S::MASKS && a.steps_sm90.masks);
    post.ending = !boxed                             ? ENDS_ALONE
                  : !masked                          ? ENDS_BOXED
                  : rows_differ<S>(a) && !post.clean ? ENDS_AGAIN
                                                     : ENDS_LOOKED;
    const int64_t row = s.q_first + post.item.first_row;
    post.lse = attn_at(&a.problem.lse, s.tensor, row, post.item.head, 0);
    if (!S::STAGED) {
        post.o = attn_at(&a.problem.o, s.tensor, row, post.item.head, 0);
    }
}

/* Computes both, a lane each. One warp. */
template <class S>
__device__ __forceinline__ void post_views(const attn_cuda_forward_params &a, Post &post)
{
    constexpr int GROUPS = S::SHARED ? 1 : S::GROUPS;
    const int lane = threadIdx.x % 32;
    if (lane < GROUPS) {
        post_group<S>(a, post, lane);
    } else if (lane == GROUPS) {
        post_ending<S>(a, post);
    }
}

/* Computes bands and blocks of a post whose item is there. */
template <class S>
__device__ __forceinline__ void post_blocks(const attn_cuda_forward_params &a, Post &post)
{
    post.item.band = attn_mask_band(&a.problem, &post.item.sequence);
    post.blocks = key_blocks(post.item.band, (int)post.item.first_row, S::BM, S::BN);
    for (int g = 0; g < S::GROUPS && !S::TMA; g++) {
        post_group<S>(a, post, g);
    }
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

/* Posts the CTA's n-th item, or the end. One thread. By TMA complete_posts completes it. */
template <class S>
__device__ __forceinline__ void post_item(const attn_cuda_forward_params &a,
                                          const Memory<S> &memory, uint32_t n)
{
    Post &post = memory.post(n); /* filled in place: registers are few here */
    const Post &before = memory.post(n - 1);
    const uint32_t index = n == 0 ? blockIdx.x : before.index;
    ptx::mbarrier_wait(memory.post_empty(n), parity(n) ^ 1);
    post.tiles = n == 0 ? 0 : before.tiles + (before.blocks.count > 0);
    post.number = n == 0 ? 0 : before.number + before.blocks.count;
    post.nonfinite = false, post.tail = 0;
    if constexpr (S::TMA) {
        post_whole<S>(a, memory, n, index);
    } else {
        post_filled<S>(a, post, index);
    }
    ptx::mbarrier_arrive(S::TMA ? memory.post_begun(n) : memory.post_full(n));
}

/* Computes what consumers alone need of each of the CTA's posts: the thread that loads goes on
 * meanwhile. By TMA, one warp. */
template <class S>
__device__ __forceinline__ void complete_posts(const attn_cuda_forward_params &a,
                                               const Memory<S> &memory)
{
    bool end = false;
#pragma unroll 1
    for (uint32_t n = 0; !end; n++) {
        Post &post = memory.post(n);
        ptx::mbarrier_wait(memory.post_begun(n), parity(n));
        end = post.end;
        if (!end) {
            post_views<S>(a, post);
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            ptx::mbarrier_arrive(memory.post_full(n));
        }
    }
}
