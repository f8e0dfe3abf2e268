/*
 * store_sm90.cuh: how O leaves forward_sm90. By TMA where O is laid out for it: each warp puts its
 * 16 rows in shared memory and goes on, while the TMA writes them and leaves out what is beyond the
 * tensor; or writes them row by row, where a sequence ends between them or heads take turns.
 * Otherwise by ordinary stores (rows.cuh). The accumulators are read once, by few instructions: the
 * code of an epilogue is fetched for every item.
 */
#pragma once
#include "cuda/kernel/rows/rows.cuh"
#include "cuda/kernel/forward/shape_sm90.cuh"
#include "cuda/kernel/ptx/tma.cuh"

template <class S> struct StagedStore {
    const attn_cuda_forward_params &a;
    uint32_t stage; /* 16 rows in chunks of 64 columns, swizzled as operands are (wgmma.cuh) */

    template <class Warp, int N>
    __device__ __forceinline__ void rows(const Item &item, const Warp &warp, const float (&o)[N],
                                         const float (&factor)[2], const bool (&write)[2],
                                         bool careful) const
    {
        if (!a.o_boxed) {
            DirectStore<S::DTYPE>{a.problem}.rows(item, warp, o, factor, write, careful);
            return;
        }
        const int lane = threadIdx.x % 32;
        const bool leader = lane == 0;
        if (S::RAGGED || leader) {
            tma::wait_stores_read(); /* place of the last item's rows */
        }
        __syncwarp();
        put(o, factor);
        ptx::fence_proxy_async();
        __syncwarp();
        const int first = (int)(S::RAGGED ? item.sequence.q_first : 0);
        if (S::RAGGED && !warp.whole(item)) {
            const int row = lane < 16 ? warp.row(item, lane) : 1 << 30;
            if (row < item.sequence.nq) {
                store_box(a.o_row_map, item, lane * 128, first + row, warp.head(item, lane),
                          careful);
            }
        } else if (leader) {
            store_box(a.o_map, item, 0, first + warp.WarpRows::row(item, 0), item.head, careful);
        }
        __syncwarp();
    }
    /* Stores the box of rows that begins `at` bytes into each chunk. */
    __device__ __forceinline__ void store_box(const attn_tensor_map &map, const Item &item, int at,
                                              int row, int head, bool careful) const
    {
#pragma unroll
        for (int c = 0; c < S::V_WIDE / 64; c++) {
            tma::store(&map, stage + c * S::STAGE_CHUNK + at, 64 * c, row, head,
                       (int)item.sequence.tensor);
        }
        tma::commit_stores();
        if (careful) { /* careful rows follow by ordinary stores */
            tma::wait_stores();
        }
    }
    /* Puts rows in shared memory. */
    template <int N>
    __device__ __forceinline__ void put(const float (&o)[N], const float (&factor)[2]) const
    {
        const int lane = ptx::opaque(threadIdx.x % 32), row = lane % 8;
        const uint32_t to = stage + row * 128, piece = (lane / 8 ^ row) * 16;
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int g = 0; g < N / 16; g++) { /* 32 columns each */
                uint32_t x[4];
                pack_quad<S::BF16>(x, o, g, r, factor[r]);
                ptx::store_matrices(to + r * 1024 + g / 2 * S::STAGE_CHUNK + (piece ^ g % 2 * 64),
                                    x[0], x[1], x[2], x[3]);
            }
        }
    }
};
