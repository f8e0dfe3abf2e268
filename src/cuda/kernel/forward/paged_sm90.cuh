/*
 * paged_sm90.cuh: tiles of K and V whose rows lie in pages (block_table of attn.h), by TMA: a warp,
 * each lane a box of rows that all lie in one page, as many as divide a page and a tile. Boxes
 * without a key in use are not loaded: earlier tiles' rows there are masked in K and cleared in V
 * (ragged_sm90.cuh).
 */
#pragma once
#include "cuda/kernel/forward/ragged_sm90.cuh"

template <class S> struct PagedLoader : RaggedLoader<S> {
    int keys; /* keys of the sequence */
    int64_t sequence;
    int2 place[2]; /* of boxes of the block to be loaded (look) */

    __device__ __forceinline__ void begin(const Post &post)
    {
        RaggedLoader<S>::begin(post);
        keys = (int)post.item.sequence.nk;
        sequence = post.item.sequence.index;
    }
    __device__ __forceinline__ void q(const Item &item, int piece)
    {
        if (threadIdx.x == 0) {
            RaggedLoader<S>::q(item, piece);
        }
    }
    /* Boxes of a block of keys. */
    __device__ __forceinline__ int boxes(int block) const
    {
        const int box = this->a.pages.box;
        return (min(keys - block * S::BN, S::BN) + box - 1) / box;
    }
    /* The i-th box of a block: its row in its page, and the page. */
    __device__ __forceinline__ int2 box_place(int block, int i) const
    {
        const int size = this->a.pages.size;
        const int row = this->first_key + block * S::BN + i * this->a.pages.box, page = row / size;
        const int64_t entry = attn_kv_entry(&this->a.problem.table, sequence, page);
        return make_int2(row - page * size,
                         (int)attn_clamp(entry, 0, this->a.problem.k.shape[0] - 1));
    }
    template <int WIDE>
    __device__ __forceinline__ void tile(uint32_t to, const attn_tensor_map &map, uint32_t barrier,
                                         int block)
    {
        const int lane = ptx::opaque(threadIdx.x % 32), count = boxes(block);
        if (lane == 0) {
            ptx::mbarrier_arrive_expect(barrier, count * this->a.pages.box * WIDE * 2);
        }
        __syncwarp();
#pragma unroll 1
        for (int i = lane; i < count; i += 32) {
            const int2 at = box_place(block, i);
#pragma unroll
            for (int c = 0; c < WIDE / 64; c++) {
                tma::load(to + c * S::BN * 128 + i * this->a.pages.box * 128, &map, barrier, 64 * c,
                          at.x, this->kv_head, at.y, tma::EVICT_LAST);
            }
        }
    }
    /* Finds the boxes of a block: a lane has two of them. */
    __device__ __forceinline__ void look(int block)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = threadIdx.x % 32 + 32 * h;
            if (i < boxes(block)) {
                place[h] = box_place(block, i);
            }
        }
    }
    /* Of the boxes of a half of a tile's columns a lane has a chunk each. */
    __device__ __forceinline__ void load_half(uint32_t n, int block, int half)
    {
        constexpr int CHUNKS = S::DV / 64;
        const int lane = ptx::opaque(threadIdx.x % 32), count = boxes(block);
        if (lane == 0) {
            this->announce_half(n, block, half, count * this->a.pages.box);
        }
        __syncwarp();
#pragma unroll 1
        for (int i = lane; i - lane < count * CHUNKS; i += 32) {
            load_chunk(n, block, half, count, i / CHUNKS, half * CHUNKS + i % CHUNKS);
        }
#pragma unroll 1
        for (int i = lane; this->has_last(n, half) && i - lane < count; i += 32) {
            load_chunk(n, block, half, count, i, S::WIDE / 64 - 1);
        }
    }
    /* Loads chunk c of box i of count, for each lane. Lanes' boxes are among the same 32. */
    __device__ __forceinline__ void load_chunk(uint32_t n, int block, int half, int count, int i,
                                               int c) const
    {
        const int2 mine = i / 32 % 2 ? place[1] : place[0];
        const int row = __shfl_sync(~0u, mine.x, i % 32), there = __shfl_sync(~0u, mine.y, i % 32);
        if (i < count) {
            tma::load(this->memory.k(n) + c * S::BN * 128 + i * this->a.pages.box * 128,
                      &this->a.k_map, this->half_barrier(n, block, half), 64 * c, row,
                      this->kv_head, there, tma::EVICT_LAST);
        }
    }
    __device__ __forceinline__ void k(uint32_t n, int block)
    {
        tile<S::WIDE>(this->memory.k(n), this->a.k_map, this->memory.k_full(n), block);
    }
    __device__ __forceinline__ void v(uint32_t n, int block)
    {
        const bool even = this->even.has(block);
        tile<S::V_WIDE>(this->memory.v(n), this->a.v_map,
                        even ? this->memory.v_full(n) : this->memory.v_raw(n), block);
    }
};
