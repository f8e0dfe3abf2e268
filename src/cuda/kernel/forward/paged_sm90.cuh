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
    template <int WIDE>
    __device__ __forceinline__ void tile(uint32_t to, const attn_tensor_map &map, uint32_t barrier,
                                         int block)
    {
        const attn_cuda_forward_params &a = this->a;
        const int lane = ptx::opaque(threadIdx.x % 32), box = a.pages.box, size = a.pages.size;
        const int boxes = (min(keys - block * S::BN, S::BN) + box - 1) / box;
        if (lane == 0) {
            ptx::mbarrier_arrive_expect(barrier, boxes * box * WIDE * 2);
        }
        __syncwarp();
#pragma unroll 1
        for (int i = lane; i < boxes; i += 32) {
            const int row = this->first_key + block * S::BN + i * box, page = row / size;
            const int64_t entry = attn_kv_entry(&a.problem.table, sequence, page);
            const int there = (int)attn_clamp(entry, 0, a.problem.k.shape[0] - 1);
#pragma unroll
            for (int c = 0; c < WIDE / 64; c++) {
                tma::load(to + c * S::BN * 128 + i * box * 128, &map, barrier, 64 * c,
                          row - page * size, this->kv_head, there, tma::EVICT_LAST);
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
