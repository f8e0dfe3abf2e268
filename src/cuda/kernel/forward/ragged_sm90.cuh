/*
 * ragged_sm90.cuh: the producer warpgroup of forward_sm90 where sequences may end inside the tensors,
 * or the rows of several heads share a tile. Three warps:
 *
 *     0  loads, one thread, all by TMA (RaggedLoader)
 *     1  finds the items and posts them, one ahead of what is being loaded
 *     2  clears rows of V beyond a sequence's last key, which the TMA has loaded: they belong to others
 *
 * Rows of Q and K that belong to others do no harm: rows of Q are rows of O that nobody writes, and
 * scores of keys beyond the last are masked. But a probability of 0 times a V that is not finite is
 * not 0.
 */
#pragma once
#include "cuda/kernel/forward/produce_sm90.cuh"

/* The last of the segments 0 .. batch + 1 whose slots begin at `slot` or before. The whole warp. */
__device__ __forceinline__ int find_segment(const attn_problem &p, int rows, int slot)
{
    int lo = 0, count = (int)p.batch + 2;
#pragma unroll 1
    while (count > 1) {
        const int step = (count + 31) / 32, v = lo + (int)(threadIdx.x % 32) * step;
        const bool before = v < lo + count && (int)segment_start(p, v) / rows + v <= slot;
        const int last = __popc(__ballot_sync(~0u, before)) - 1; /* the first is: lo is */
        lo += last * step;
        count = min(step, count - last * step);
    }
    return lo;
}

/* The whole warp; its first lane fills the item in. With a bounded right side the last rows of all,
 * which see most keys, come first. */
__device__ __forceinline__ void ragged_item(const attn_cuda_forward_params &a, uint32_t index, Item &item)
{
    const attn_problem &p = a.problem;
    const attn_cuda_schedule &s = a.schedule;
    int sequence, head, row;
    if (p.varlen) {
        const int place = (int)(index / (uint32_t)s.heads);
        const int slot = p.window_right != ATTN_UNBOUNDED ? s.blocks - 1 - place : place;
        const int v = find_segment(p, s.rows, slot);
        row = (slot - (int)segment_start(p, v) / s.rows - v) * s.rows;
        sequence = segment_sequence(p, v), head = (int)(index % (uint32_t)s.heads);
    } else {
        uint32_t column, block;
        dense_place(s, index, column, block);
        row = (int)block * s.rows;
        sequence = (int)(column / (uint32_t)s.heads), head = (int)(column % (uint32_t)s.heads);
    }
    if (threadIdx.x % 32 == 0) {
        item.head = head * s.fold;
        item.first_row = row;
        item.sequence.index = sequence;
    }
    __syncwarp(); /* what follows reads the item from memory: registers are few */
    if (threadIdx.x % 32 == 0) {
        item.sequence = attn_problem_lengths(&p, item.sequence.index);
        item.empty = item.first_row >= item.sequence.nq;
    }
}

/* What follows from an item. One thread. */
template <class S>
__device__ __forceinline__ void complete_post(const attn_cuda_forward_params &a, Post &post)
{
    attn_sequence &s = post.item.sequence;
    s.diagonal = attn_sequence_diagonal(&a.problem, &s);
    post.item.band = attn_mask_band(&a.problem, &s);
    post.blocks = key_blocks(post.item.band, (int)post.item.first_row, a.schedule.rows, S::BN);
    const int rest = post.item.band.keys - post.blocks.last * S::BN;
    const bool others = attn_kv_row(&s, s.nk) < a.problem.k.shape[1]; /* beyond the tensor all is 0 */
    post.tail = post.blocks.count > 0 && rest < S::BN && others ? rest : 0;
}

/* The second warp: posts all of the CTA's items, and the end. */
template <class S>
__device__ __forceinline__ void post_ragged(const attn_cuda_forward_params &a, const Memory<S> &memory)
{
    const bool first = threadIdx.x % 32 == 0;
    uint32_t index = blockIdx.x, tiles = 0;
    bool end = false;
#pragma unroll 1
    for (uint32_t posts = 0; !end; posts++) {
        Post &post = memory.post(posts);
        bool empty = true;
        ptx::mbarrier_wait(memory.post_empty(posts), parity(posts) ^ 1);
#pragma unroll 1
        while (empty) {
            end = index >= (uint32_t)a.schedule.items;
            if (end) {
                break;
            }
            ragged_item(a, index, post.item);
            if (first) {
                index = following_item(a.counter, index);
                empty = post.item.empty;
            }
            __syncwarp(); /* what follows reads the item from memory: registers are few */
            index = __shfl_sync(~0u, index, 0);
            empty = __shfl_sync(~0u, empty, 0);
        }
        if (first) {
            post.end = end, post.tiles = tiles;
            if (!end) {
                complete_post<S>(a, post);
                tiles += post.blocks.count > 0;
            }
            ptx::mbarrier_arrive(memory.post_full(posts));
        }
    }
}

/* The third warp. */
template <class S>
__device__ __forceinline__ void clear_tails(const Memory<S> &memory)
{
    const int lane = threadIdx.x % 32;
    uint32_t number = 0, parities = 0; /* bit: of the raw barrier of that stage */
#pragma unroll 1
    for (uint32_t posts = 0;; posts++) {
        ptx::mbarrier_wait(memory.post_full(posts), parity(posts));
        const Post &post = memory.post(posts);
        if (post.end) {
            break;
        }
        const int tail = post.tail, count = post.blocks.count;
        __syncwarp();
        if (lane == 0) {
            ptx::mbarrier_arrive(memory.post_empty(posts));
        }
        if (tail > 0) {
            ptx::mbarrier_wait(memory.v_raw(number), parities >> number % STAGES & 1);
            parities ^= 1 << number % STAGES;
#pragma unroll 1
            for (int c = 0; c < S::D / 64; c++) {
#pragma unroll 1
                for (int at = tail * 128 + lane * 16; at < S::BN * 128; at += 32 * 16) {
                    ptx::store_shared_16(memory.v(number) + c * S::BN * 128 + at, make_uint4(0, 0, 0, 0));
                }
            }
            ptx::fence_proxy_async();
            __syncwarp();
            if (lane == 0) {
                ptx::mbarrier_arrive(memory.v_full(number));
            }
        }
        number += count;
    }
}

template <class S>
__device__ __forceinline__ void produce_ragged(const attn_cuda_forward_params &a, const Memory<S> &memory)
{
    const int warp = ptx::uniform(threadIdx.x / 32);
    if (warp == 0) {
        if (threadIdx.x == 0) {
            produce<S>(a, memory, RaggedLoader<S>{a, memory});
        }
    } else if (warp == 1) {
        post_ragged<S>(a, memory);
    } else if (warp == 2) {
        clear_tails<S>(memory);
    }
}
