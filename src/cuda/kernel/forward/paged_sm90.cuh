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
    /* Loads chunks FROM .. TO - 1, from `first` on, of the i-th box of a block. */
    template <int FROM, int TO>
    __device__ __forceinline__ void load_box(uint32_t to, const attn_tensor_map &map,
                                             uint32_t barrier, int block, int i, int first) const
    {
        const attn_cuda_forward_params &a = this->a;
        const int box = a.pages.box, size = a.pages.size;
        const int row = this->first_key + block * S::BN + i * box, page = row / size;
        const int64_t entry = attn_kv_entry(&a.problem.table, sequence, page);
        const int there = (int)attn_clamp(entry, 0, a.problem.k.shape[0] - 1);
#pragma unroll
        for (int c = FROM; c < TO; c++) {
            tma::load(to + (first + c) * S::BN * 128 + i * box * 128, &map, barrier,
                      64 * (first + c), row - page * size, this->kv_head, there, tma::EVICT_LAST);
        }
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
            load_box<0, WIDE / 64>(to, map, barrier, block, i, 0);
        }
    }
    /* Of the boxes of a half of a tile's columns a lane has a chunk each. */
    __device__ __forceinline__ void load_half(uint32_t n, int block, int half)
    {
        constexpr int CHUNKS = S::DV / 64;
        const int lane = ptx::opaque(threadIdx.x % 32), count = boxes(block);
        const uint32_t barrier = this->half_barrier(n, block, half), to = this->memory.k(n);
        if (lane == 0) {
            this->announce_half(n, block, half, count * this->a.pages.box);
        }
        __syncwarp();
#pragma unroll 1
        for (int i = lane; i < count * CHUNKS; i += 32) {
            load_box<0, 1>(to, this->a.k_map, barrier, block, i / CHUNKS,
                           half * CHUNKS + i % CHUNKS);
        }
        if (this->has_last(n, half)) {
#pragma unroll 1
            for (int i = lane; i < count; i += 32) {
                load_box<0, 1>(to, this->a.k_map, barrier, block, i, S::WIDE / 64 - 1);
            }
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
