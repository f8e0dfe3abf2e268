/*
 * produce_sm90.cuh: the producer warpgroup of forward_sm90: finds the CTA's items, posts them to the consumers, and
 * loads their Q, K and V, by TMA (one thread) or by all its threads (load.cuh).
 */
#pragma once
#include "load.cuh"
#include "shape_sm90.cuh"
#include "tma.cuh"

template <class S> __device__ __forceinline__ Blocks key_blocks(const attn_problem &p, const Item &item)
{
    attn_rows_mask m = attn_mask_range(&p, &item.sequence, item.first_row, item.first_row + S::BM);
    Blocks b = {0, 0, 0, 0};
    if (m.hull.lo < m.hull.hi) {
        b.last = ((int)m.hull.hi - 1) / S::BN;
        b.count = b.last - (int)m.hull.lo / S::BN + 1;
        b.full_first = ((int)m.common.lo + S::BN - 1) / S::BN;
        b.full_last = (int)m.common.hi / S::BN;
    }
    return b;
}

/* This CTA's item of a round: every second round runs backwards, so that heavy and light items even out. False if there
 * is none, or nothing to write. */
__device__ __forceinline__ bool next_item(const attn_cuda_forward_params &a, uint32_t round, Item &item)
{
    uint32_t index = round * gridDim.x + (round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    if (index >= (uint32_t)a.schedule.items) {
        return false;
    }
    item = schedule_item(a.problem, a.schedule, index);
    return !item.empty;
}

/* By TMA: one thread. */
template <class S> struct TmaLoader {
    const attn_cuda_forward_params &a;
    const Memory<S> &memory;
    int row, head, kv_head, batch;

    template <int ROWS>
    __device__ __forceinline__ void tile(uint32_t to, const attn_tensor_map &map, uint32_t barrier, int row, int h,
                                         uint64_t hint)
    {
        ptx::mbarrier_arrive_expect(barrier, ROWS * S::D * 2);
#pragma unroll
        for (int c = 0; c < S::D / 64; c++) {
            tma::load(to + c * ROWS * 128, &map, barrier, 64 * c, row, h, batch, hint);
        }
    }
    __device__ __forceinline__ void begin(const Item &item)
    {
        row = (int)item.first_row, head = item.head, kv_head = item.head / (int)a.problem.group,
        batch = (int)item.sequence.tensor;
    }
    __device__ __forceinline__ void q()
    {
        tile<S::BM>(memory.q(), a.q_map, memory.q_full(), row, head, tma::EVICT_FIRST);
    }
    __device__ __forceinline__ void k(uint32_t n, int block)
    {
        tile<S::BN>(memory.k(n), a.k_map, memory.k_full(n), block * S::BN, kv_head, tma::EVICT_LAST);
    }
    __device__ __forceinline__ void v(uint32_t n, int block)
    {
        tile<S::BN>(memory.v(n), a.v_map, memory.v_full(n), block * S::BN, kv_head, tma::EVICT_LAST);
    }
    __device__ __forceinline__ void finish()
    {
    }
};

/* By all threads of the warpgroup; a tile's arrival is announced when the next one is under way. */
template <class S> struct ThreadLoader {
    const attn_cuda_forward_params &a;
    const Memory<S> &memory;
    uint32_t pending;
    int q_rows, keys; /* rows that there are */
    const char *q_first, *k_first, *v_first;

    template <int LEFT> __device__ __forceinline__ void announce()
    {
        if (pending != 0) {
            ptx::copy_async_wait<LEFT>();
            ptx::fence_proxy_async();
            ptx::mbarrier_arrive(pending);
        }
    }
    template <int ROWS>
    __device__ __forceinline__ void tile(uint32_t to, const attn_tensor &t, const char *first, int row, int rows,
                                         int aligned, uint32_t barrier)
    {
        load_rows<ROWS, S::D>(to, t, first + row * (t.stride[1] * 2), rows - row, a.aligned & aligned);
        ptx::copy_async_commit();
        announce<1>();
        pending = barrier;
    }
    __device__ __forceinline__ void begin(const Item &i)
    {
        const attn_problem &p = a.problem;
        const attn_sequence &s = i.sequence;
        int kv_head = i.head / (int)p.group;
        q_first = attn_at(&p.q, s.tensor, s.q_first + i.first_row, i.head, 0);
        k_first = attn_at(&p.k, s.tensor, s.k_first, kv_head, 0);
        v_first = attn_at(&p.v, s.tensor, s.k_first, kv_head, 0);
        q_rows = (int)(s.nq_used - i.first_row), keys = (int)s.nk;
    }
    __device__ __forceinline__ void q()
    {
        tile<S::BM>(memory.q(), a.problem.q, q_first, 0, q_rows, ATTN_CUDA_ALIGNED_Q, memory.q_full());
    }
    __device__ __forceinline__ void k(uint32_t n, int block)
    {
        tile<S::BN>(memory.k(n), a.problem.k, k_first, block * S::BN, keys, ATTN_CUDA_ALIGNED_K, memory.k_full(n));
    }
    __device__ __forceinline__ void v(uint32_t n, int block)
    {
        tile<S::BN>(memory.v(n), a.problem.v, v_first, block * S::BN, keys, ATTN_CUDA_ALIGNED_V, memory.v_full(n));
    }
    __device__ __forceinline__ void finish()
    {
        announce<0>();
        pending = 0;
    }
};

template <class S> __device__ __forceinline__ void post_item(const Memory<S> &memory, uint32_t n, const Post &post)
{
    if (threadIdx.x == 0) {
        ptx::mbarrier_wait(memory.post_empty(n), parity(n) ^ 1);
        memory.post(n) = post;
        ptx::mbarrier_arrive(memory.post_full(n));
    }
}

template <class S, class Loader>
__device__ __forceinline__ void produce(const attn_cuda_forward_params &a, const Memory<S> &memory, Loader load)
{
    uint32_t number = 0, tiles = 0, posts = 0; /* key blocks, items with key blocks, items */
    Post post;
#pragma unroll 1
    for (uint32_t round = 0; round * gridDim.x < (uint32_t)a.schedule.items; round++) {
        if (!next_item(a, round, post.item)) {
            continue;
        }
        post.blocks = key_blocks<S>(a.problem, post.item);
        post.end = false;
        post_item(memory, posts++, post);
        const Blocks b = post.blocks;
        if (b.count == 0) {
            continue;
        }
        load.begin(post.item);
        ptx::mbarrier_wait(memory.k_empty(number), parity(number) ^ 1);
        load.k(number, b.last);
        ptx::mbarrier_wait(memory.q_empty(), (tiles & 1) ^ 1);
        load.q();
#pragma unroll 1
        for (int i = 1; i <= b.count; i++) {
            uint32_t n = number + i;
            if (i < b.count) {
                ptx::mbarrier_wait(memory.k_empty(n), parity(n) ^ 1);
                load.k(n, b.last - i);
            }
            ptx::mbarrier_wait(memory.v_empty(n - 1), parity(n - 1) ^ 1);
            load.v(n - 1, b.last - i + 1);
        }
        number += b.count;
        tiles++;
    }
    load.finish();
    post.end = true;
    post_item(memory, posts, post);
}
