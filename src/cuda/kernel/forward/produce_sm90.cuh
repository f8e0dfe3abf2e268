/*
 * produce_sm90.cuh: the producer warpgroup of forward_sm90: finds the CTA's items, posts them to
 * the consumers, and loads their Q, K and V, by TMA (one thread) or by all its threads (load.cuh).
 */
#pragma once
#include "cuda/kernel/forward/post_sm90.cuh"
#include "cuda/kernel/load/load.cuh"
#include "cuda/kernel/ptx/tma.cuh"

/* Loads a tile of K or V by TMA, whose first row in the tensor is `row`. */
template <class S, int WIDE>
__device__ __forceinline__ void load_tile(const attn_cuda_forward_params &a, uint32_t to,
                                          const attn_tensor_map &map, uint32_t barrier, int row,
                                          int head, int batch)
{
    ptx::mbarrier_arrive_expect(barrier, S::BN * WIDE * 2);
    if (S::JOINS && WIDE > 64 && __builtin_expect(a.joined, true)) {
        tma::load_joined(to, &map, barrier, row, head, batch, tma::EVICT_LAST);
        return;
    }
#pragma unroll
    for (int c = 0; c < WIDE / 64; c++) {
        tma::load(to + c * S::BN * 128, &map, barrier, 64 * c, row, head, batch, tma::EVICT_LAST);
    }
}

/* Loads by TMA from whole sequences. One thread. */
template <class S> struct TmaLoader {
    const attn_cuda_forward_params &a;
    const Memory<S> &memory;
    int kv_head, batch;
    Even even;

    __device__ __forceinline__ void begin(const Post &post)
    {
        kv_head = post.item.head / (int)a.problem.group, batch = (int)post.item.sequence.tensor;
        even = even_blocks<S>(a, post);
    }
    __device__ __forceinline__ void q(const Item &item, int piece)
    {
        const int row = (int)item.first_row + piece * 64;
        ptx::mbarrier_arrive_expect(memory.q_full(piece), 64 * S::WIDE * 2);
#pragma unroll
        for (int c = 0; c < S::WIDE / 64; c++) {
            tma::load(memory.q() + piece * 64 * 128 + c * S::BM * 128, &a.q_map,
                      memory.q_full(piece), 64 * c, row, item.head, batch, tma::EVICT_FIRST);
        }
    }
    __device__ __forceinline__ void k(uint32_t n, int block)
    {
        load_tile<S, S::WIDE>(a, memory.k(n), a.k_map, memory.k_full(n), block * S::BN, kv_head,
                              batch);
    }
    __device__ __forceinline__ void v(uint32_t n, int block)
    {
        load_tile<S, S::V_WIDE>(a, memory.v(n), a.v_map,
                                even.has(block) ? memory.v_full(n) : memory.v_raw(n), block * S::BN,
                                kv_head, batch);
    }
    __device__ __forceinline__ void finish()
    {
    }
};

/* Loads by TMA from sequences that begin and end anywhere. Rows of Q are of `fold` heads in
 * turn. */
template <class S> struct RaggedLoader {
    const attn_cuda_forward_params &a;
    const Memory<S> &memory;
    int kv_head, batch, first_key;
    Even even;

    __device__ __forceinline__ void begin(const Post &post)
    {
        kv_head = post.item.head / (int)a.problem.group, batch = (int)post.item.sequence.tensor;
        first_key = (int)attn_kv_row(&post.item.sequence, 0);
        even = even_blocks<S>(a, post);
    }
    __device__ __forceinline__ void q(const Item &item, int piece)
    {
        const int head = item.head / a.schedule.fold;
        const int row = (int)(item.sequence.q_first + item.first_row) + piece * a.schedule.piece;
        ptx::mbarrier_arrive_expect(memory.q_full(piece),
                                    a.schedule.fold * a.schedule.piece * S::WIDE * 2);
#pragma unroll
        for (int c = 0; c < S::WIDE / 64; c++) {
            tma::load_folded(memory.q() + piece * 64 * 128 + c * S::BM * 128, &a.q_map,
                             memory.q_full(piece), 64 * c, row, head, batch, tma::EVICT_FIRST);
        }
    }
    template <int WIDE>
    __device__ __forceinline__ void tile(uint32_t to, const attn_tensor_map &map, uint32_t barrier,
                                         int block)
    {
        load_tile<S, WIDE>(a, to, map, barrier, first_key + block * S::BN, kv_head, batch);
    }
    __device__ __forceinline__ void k(uint32_t n, int block)
    {
        tile<S::WIDE>(memory.k(n), a.k_map, memory.k_full(n), block);
    }
    __device__ __forceinline__ void v(uint32_t n, int block)
    {
        tile<S::V_WIDE>(memory.v(n), a.v_map, even.has(block) ? memory.v_full(n) : memory.v_raw(n),
                        block);
    }
    /* Halves of a tile's columns, where groups swap P: those of V that group `half` multiplies, and
     * the last ones with the half of the group that does not own the block. */
    __device__ __forceinline__ bool has_last(uint32_t n, int half) const
    {
        return (n + half) % 2 != 0;
    }
    __device__ __forceinline__ uint32_t half_barrier(uint32_t n, int block, int half) const
    {
        return !even.has(block) ? memory.v_raw(n) : half == 0 ? memory.k_full(n) : memory.v_full(n);
    }
    /* Announces a half of which `rows` rows will come; of tiles to be cleaned both at once. */
    __device__ __forceinline__ void announce_half(uint32_t n, int block, int half, int rows) const
    {
        const bool raw = !even.has(block);
        if (!raw || half == 0) {
            const int chunks = raw ? S::WIDE / 64 : S::DV / 64 + has_last(n, half);
            ptx::mbarrier_arrive_expect(half_barrier(n, block, half), chunks * rows * 128);
        }
    }
    __device__ __forceinline__ void load_half(uint32_t n, int block, int half)
    {
        constexpr int CHUNKS = S::DV / 64;
        const uint32_t barrier = half_barrier(n, block, half);
        announce_half(n, block, half, S::BN);
#pragma unroll
        for (int i = 0; i <= CHUNKS; i++) {
            const int c = i < CHUNKS ? half * CHUNKS + i : S::WIDE / 64 - 1;
            if (i < CHUNKS || has_last(n, half)) {
                tma::load(memory.k(n) + c * S::BN * 128, &a.k_map, barrier, 64 * c,
                          first_key + block * S::BN, kv_head, batch, tma::EVICT_LAST);
            }
        }
    }
    __device__ __forceinline__ void finish()
    {
    }
};

/* Addresses of an item's keys, for loaders that are threads. */
template <class S> struct Keys {
    const char *k_first, *v_first;
    int count;

    __device__ __forceinline__ void begin(const attn_problem &p, const Item &i)
    {
        int kv_head = i.head / (int)p.group;
        k_first = attn_kv_at(&p.k, &i.sequence, kv_head, 0, 0);
        v_first = attn_kv_at(&p.v, &i.sequence, kv_head, 0, 0);
        count = (int)i.sequence.nk;
    }
    static __device__ __forceinline__ const char *row(const attn_tensor &t, const char *first,
                                                      int row)
    {
        return first + row * (t.stride[1] * S::ELEMENT);
    }
};

/* Loads by all threads of the warpgroup; a tile's arrival is announced when the next one is under
 * way. */
template <class S> struct ThreadLoader {
    const attn_cuda_forward_params &a;
    const Memory<S> &memory;
    uint32_t pending;
    Keys<S> keys;
    Even even;
    Post *post;
    uint32_t unclean;   /* the tile under way, if it is cleaned; else 0 */
    Post *unclean_post; /* whose tile that is: the next item may have begun */

    template <int LEFT> __device__ __forceinline__ void announce()
    {
        if (pending != 0) {
            ptx::copy_async_wait<LEFT>();
            if (unclean != 0 && clean_rows<S::BF16, S::BN, S::V_COLUMNS, 128>(unclean)) {
                unclean_post->nonfinite = true;
            }
            ptx::fence_proxy_async();
            ptx::mbarrier_arrive(pending);
        }
    }
    template <int ROWS, int D>
    __device__ __forceinline__ void tile(uint32_t to, const attn_tensor &t, const char *first,
                                         int row, int rows, int aligned, uint32_t barrier)
    {
        load_rows<ROWS, D, 128>(to, t, keys.row(t, first, row), rows - row, a.aligned & aligned);
        ptx::copy_async_commit();
        announce<1>();
        pending = barrier, unclean = 0;
    }
    __device__ __forceinline__ void begin(Post &post_)
    {
        keys.begin(a.problem, post_.item);
        even = even_blocks<S>(a, post_), post = &post_;
    }
    __device__ __forceinline__ void q(const Item &i, int)
    {
        const char *first =
            attn_at(&a.problem.q, i.sequence.tensor, i.sequence.q_first + i.first_row, i.head, 0);
        tile<S::BM, S::D>(memory.q(), a.problem.q, first, 0,
                          (int)(i.sequence.nq_used - i.first_row), ATTN_CUDA_ALIGNED_Q,
                          memory.q_full(0));
    }
    __device__ __forceinline__ void k(uint32_t n, int block)
    {
        tile<S::BN, S::D>(memory.k(n), a.problem.k, keys.k_first, block * S::BN, keys.count,
                          ATTN_CUDA_ALIGNED_K, memory.k_full(n));
    }
    __device__ __forceinline__ void v(uint32_t n, int block)
    {
        tile<S::BN, S::V_COLUMNS>(memory.v(n), a.problem.v, keys.v_first, block * S::BN, keys.count,
                                  ATTN_CUDA_ALIGNED_V, memory.v_full(n));
        unclean = even.has(block) ? 0 : memory.v(n), unclean_post = post;
    }
    __device__ __forceinline__ void finish()
    {
        announce<0>();
        pending = 0;
    }
};

/* Loads f32 by all threads of the warpgroup. A tile comes as it is and is split into parts, for
 * which room is needed then, when the next tile is under way. Consumers load Q themselves. */
template <class S> struct SplitLoader {
    const attn_cuda_forward_params &a;
    const Memory<S> &memory;
    Keys<S> keys;
    Even even;
    Post *post;
    bool unclean;   /* the tile under way is cleaned */
    uint32_t tiles; /* so far */
    /* barriers and place of the tile under way; full = 0: none */
    uint32_t to, full, empty, empty_parity;

    template <int LEFT> __device__ __forceinline__ void split()
    {
        if (full != 0) {
            ptx::mbarrier_wait(empty, empty_parity);
            ptx::copy_async_wait<LEFT>();
            if (unclean && clean_raw<S::BN, S::D, 128>(memory.raw(tiles - 1))) {
                post->nonfinite = true;
            }
            split_raw<S::BN, S::D, 128, S::BN>(to, 0, memory.raw(tiles - 1));
            ptx::fence_proxy_async();
            ptx::mbarrier_arrive(full);
        }
    }
    __device__ __forceinline__ void tile(const attn_tensor &t, const char *first, int block,
                                         int aligned)
    {
        const int row = block * S::BN;
        load_raw<S::BN, S::D, 128>(memory.raw(tiles), t, keys.row(t, first, row), keys.count - row,
                                   a.aligned & aligned);
        ptx::copy_async_commit();
        split<1>();
        tiles++;
    }
    __device__ __forceinline__ void begin(Post &post_)
    {
        keys.begin(a.problem, post_.item);
        even = even_blocks<S>(a, post_), post = &post_;
    }
    __device__ __forceinline__ void q(const Item &, int)
    {
    }
    __device__ __forceinline__ void k(uint32_t n, int block)
    {
        tile(a.problem.k, keys.k_first, block, ATTN_CUDA_ALIGNED_K);
        unclean = false;
        to = memory.k(n), full = memory.k_full(n), empty = memory.k_empty(n),
        empty_parity = tile_parity<S>(n) ^ 1;
    }
    __device__ __forceinline__ void v(uint32_t n, int block)
    {
        tile(a.problem.v, keys.v_first, block, ATTN_CUDA_ALIGNED_V);
        unclean = !even.has(block);
        to = memory.v(n), full = memory.v_full(n), empty = memory.v_empty(n),
        empty_parity = tile_parity<S>(n) ^ 1;
    }
    __device__ __forceinline__ void finish()
    {
        split<0>();
        full = 0;
    }
};

/* The n-th tile of K, as soon as there is room. Where there is one place alone, the next tile of V
 * comes after products with this one: threads that load say at once that they are done. */
template <class S, class Loader>
__device__ __forceinline__ void load_k(const Memory<S> &memory, Loader &load, uint32_t n, int block)
{
    if constexpr (S::PAGED) {
        load.look(block); /* while there is no room yet */
    }
    if (S::PARTS == 1) {
        ptx::mbarrier_wait(memory.k_empty(n), tile_parity<S>(n) ^ 1);
    }
    if constexpr (S::SWAPS) {
        load.load_half(n, block, 0);
        ptx::mbarrier_wait(memory.v_empty(n), tile_parity<S>(n) ^ 1);
        load.load_half(n, block, 1);
        return;
    }
    load.k(n, block);
    if (S::STAGES == 1) {
        load.finish();
    }
}

template <class S, class Loader>
__device__ __forceinline__ void produce(const attn_cuda_forward_params &a, const Memory<S> &memory,
                                        Loader load)
{
    uint32_t number = 0; /* number of key blocks */
#pragma unroll 1
    for (uint32_t posts = 0;; posts++) {
        if (!S::RAGGED && threadIdx.x == 0) {
            post_item(a, memory, posts);
        }
        if (!S::TMA) {
            __syncwarp(); /* else the first thread loads by itself, before the others */
        }
        /* the thread that loads by TMA has begun the post itself */
        Post &post = S::TMA && !S::RAGGED ? memory.post(posts) : memory.await_post(posts);
        if (post.end) {
            break;
        }
        const Walk<S> walk(a, post.item, post.blocks);
        const int count = post.blocks.count;
        if (count > 0) {
            load.begin(post);
            load_k<S>(memory, load, number, walk.block(0));
            for (int piece = 0; piece < S::Q_PIECES; piece++) {
                if (S::PARTS == 1) {
                    ptx::mbarrier_wait(memory.q_empty(piece), (post.tiles & 1) ^ 1);
                }
                load.q(post.item, piece);
            }
        } else {
            load.finish(); /* the item before this one must end before there is room for another
                              post */
        }
        if (!S::RAGGED && threadIdx.x == 0 && !(S::TMA && post.clean)) {
            /* the delay of the answer does no harm here */
            post.index = following_item(a.counter, post.index);
        }
        if (!S::TMA) {
            __syncwarp();
            if (threadIdx.x % 32 == 0) {
                ptx::mbarrier_arrive(memory.post_empty(posts));
            }
        }
#pragma unroll 1
        for (int i = 1; i <= count; i++) {
            uint32_t n = number + i;
            if (!S::SHARED && i < count) {
                load_k<S>(memory, load, n, walk.block(i));
            }
            if (!S::VIEW) {
                if (S::PARTS == 1) {
                    ptx::mbarrier_wait(memory.v_empty(n - 1), tile_parity<S>(n - 1) ^ 1);
                }
                if constexpr (S::PAGED) {
                    load.v(n - 1, walk.block(i - 1), i == count);
                } else {
                    load.v(n - 1, walk.block(i - 1));
                }
            }
            if (S::SHARED && i < count) { /* P V goes first in wide kernels */
                load_k<S>(memory, load, n, walk.block(i));
            }
        }
        if (S::PAGED) {
            __syncwarp(); /* all lanes have read the post */
        }
        if (S::RAGGED && (!S::PAGED || threadIdx.x == 0)) {
            ptx::mbarrier_arrive(memory.post_empty(posts));
        }
        number += count;
        if (S::PARTS > 1) { /* issued early: the next post takes a while */
            load.finish();
        }
    }
    load.finish();
}
