/*
 * paged_sm90.cuh: tiles of K and V whose rows lie in pages (block_table of attn.h), by TMA: a warp,
 * each lane a box of rows that all lie in one page, as many as divide a page and a tile. Boxes
 * without a key in use are not loaded: earlier tiles' rows there are masked in K and cleared in V
 * (ragged_sm90.cuh).
 */
#pragma once
#include "cuda/kernel/forward/ragged_sm90.cuh"

template <class S> struct PagedLoader : RaggedLoader<S> {
    /* Whether boxes are found before there is room, and places of K's are kept for V. The producer
     * beside three groups has no registers for that. */
    static constexpr bool REMEMBERS = S::GROUPS == 2;
    int all; /* boxes with keys of the sequence */
    int sequence;
    /* A lane's boxes: of a tile of K, and of the one before, whose V comes next; or two of a tile
     * where V is a view. */
    int2 place[2];

    __device__ __forceinline__ void begin(const Post &post)
    {
        RaggedLoader<S>::begin(post);
        all = (int)((uint32_t)(post.item.sequence.nk + this->a.pages.box - 1) /
                    (uint32_t)this->a.pages.box);
        sequence = (int)post.item.sequence.index;
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
        return min(all - block * this->a.pages.boxes, this->a.pages.boxes);
    }
    /* The i-th box of a block: its row in its page, and the page. */
    __device__ __forceinline__ int2 box_place(int block, int i) const
    {
        const attn_cuda_pages &pages = this->a.pages;
        const uint32_t row = this->first_key + block * S::BN + i * pages.box;
        uint32_t page = (uint32_t)((uint64_t)row * pages.inverse >> 32), /* or one more */
            within = row - page * pages.size;
        if (within >= (uint32_t)pages.size) {
            page++, within -= pages.size;
        }
        const int64_t entry = attn_kv_entry(&this->a.problem.table, sequence, page);
        return make_int2((int)within, (int)attn_clamp(entry, 0, this->a.problem.k.shape[0] - 1));
    }
    /* Finds the boxes of a tile of K, a lane one; or two, where V is a view. */
    __device__ __forceinline__ void look(int block)
    {
        const int lane = threadIdx.x % 32, count = boxes(block);
        if constexpr (!REMEMBERS) {
            return;
        } else if constexpr (S::SWAPS) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (lane + 32 * h < count) {
                    place[h] = box_place(block, lane + 32 * h);
                }
            }
        } else if (lane < count) {
            place[1] = place[0], place[0] = box_place(block, lane);
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
    template <int WIDE>
    __device__ __forceinline__ void load_box(uint32_t to, const attn_tensor_map &map,
                                             uint32_t barrier, int i, int2 at) const
    {
#pragma unroll
        for (int c = 0; c < WIDE / 64; c++) {
            tma::load(to + c * S::BN * 128 + i * this->a.pages.box * 128, &map, barrier, 64 * c,
                      at.x, this->kv_head, at.y, tma::EVICT_LAST);
        }
    }
    /* at: the lane's box of the first 32, if it was found before; step: eights of rows in a
     * page. */
    template <int WIDE>
    __device__ __forceinline__ void tile(uint32_t to, const attn_tensor_map &map, uint32_t barrier,
                                         int block, int2 at, int step)
    {
        const attn_cuda_pages &pages = this->a.pages;
        const int lane = ptx::opaque(threadIdx.x % 32), count = boxes(block);
        if (lane == 0) {
            ptx::mbarrier_arrive_expect(barrier, count * pages.box * WIDE * 2);
        }
        __syncwarp();
        if (S::EIGHTS && pages.eights) {
            if (lane < count) {
                at = REMEMBERS ? at : box_place(block, lane);
                tma::load_eights(to + lane * pages.box * WIDE * 2, &map, barrier,
                                 at.y * step + at.x / 8, this->kv_head, tma::EVICT_LAST);
            }
        } else {
            if (REMEMBERS && lane < count) {
                load_box<WIDE>(to, map, barrier, lane, at);
            }
#pragma unroll 1
            for (int i = lane + 32 * REMEMBERS; i < count; i += 32) {
                load_box<WIDE>(to, map, barrier, i, box_place(block, i));
            }
        }
    }
    __device__ __forceinline__ void k(uint32_t n, int block)
    {
        tile<S::WIDE>(this->memory.k(n), this->a.k_map, this->memory.k_full(n), block, place[0],
                      this->a.pages.k.step);
    }
    __device__ __forceinline__ void v(uint32_t n, int block, bool last)
    {
        const bool even = this->even.has(block);
        tile<S::V_WIDE>(this->memory.v(n), this->a.v_map,
                        even ? this->memory.v_full(n) : this->memory.v_raw(n), block,
                        last ? place[0] : place[1], this->a.pages.v.step);
    }
};
