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

/* Rows times factor as words of 16-bit pairs: of row r, columns 32 g .., four from
 * N / 4 r + 4 g on. */
template <bool BF16, int N>
__device__ __forceinline__ void pack_rows(uint32_t (&words)[N / 2], const float (&o)[N],
                                          const float (&factor)[2])
{
#pragma unroll
    for (int w = 0; w < N / 2; w++) {
        const int r = w / (N / 4), at = 4 * (w % (N / 4)) + 2 * r;
        words[w] = ptx::pack_half<BF16>(o[at] * factor[r], o[at + 1] * factor[r]);
    }
}

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
        uint32_t words[N / 2];
        pack_rows<S::BF16>(words, o, factor);
        put(words);
        const int first = (int)(S::RAGGED ? item.sequence.q_first : 0);
        if (S::RAGGED && !warp.whole(item)) {
            const int row = lane < 16 ? warp.row(item, lane) : 1 << 30;
            if (row < item.sequence.nq) {
                store_box(a.o_row_map, lane * 128, first + row, warp.head(item, lane),
                          (int)item.sequence.tensor, careful);
            }
        } else if (leader) {
            store_rows(first + warp.WarpRows::row(item, 0), item.head, (int)item.sequence.tensor,
                       careful);
        }
        __syncwarp();
    }
    /* Stores the 16 rows. */
    __device__ __forceinline__ void store_rows(int row, int head, int tensor, bool careful) const
    {
        if (S::JOINS && S::V_WIDE > 64 && __builtin_expect(a.joined, true)) {
            tma::store_joined(&a.o_map, stage, row, head, tensor);
            end_stores(careful);
        } else {
            store_box(a.o_map, 0, row, head, tensor, careful);
        }
    }
    /* Stores the box of rows that begins `at` bytes into each chunk. */
    __device__ __forceinline__ void store_box(const attn_tensor_map &map, int at, int row, int head,
                                              int tensor, bool careful) const
    {
#pragma unroll
        for (int c = 0; c < S::V_WIDE / 64; c++) {
            tma::store(&map, stage + c * S::STAGE_CHUNK + at, 64 * c, row, head, tensor);
        }
        end_stores(careful);
    }
    __device__ __forceinline__ void end_stores(bool careful) const
    {
        tma::commit_stores();
        if (careful) { /* careful rows follow by ordinary stores */
            tma::wait_stores();
        }
    }
    /* The 16 rows as one box. Returns a NaN if some element is not finite, if that counts. */
    template <class Warp, int N>
    __device__ __forceinline__ uint32_t box(const Post &post, const Warp &warp, const float (&o)[N],
                                            const float (&factor)[2]) const
    {
        const Item &item = post.item;
        uint32_t words[N / 2], sum[2] = {};
        pack_rows<S::BF16>(words, o, factor);
        put(words);
        const int row = ptx::uniform((int)(S::RAGGED ? item.sequence.q_first : 0) +
                                     warp.WarpRows::row(item, 0)),
                  head = ptx::uniform(item.head), tensor = ptx::uniform((int)item.sequence.tensor);
        if (threadIdx.x % 32 == 0) {
            store_rows(row, head, tensor, false);
        }
        if (post.ending != ENDS_BOXED) {
#pragma unroll
            for (int w = 0; w < N / 2; w++) {
                sum[w % 2] = ptx::times_zero<S::BF16>(words[w], sum[w % 2]);
            }
        }
        return sum[0] | sum[1];
    }
    /* Other stores to the same rows follow. */
    __device__ __forceinline__ void settle() const
    {
        if (threadIdx.x % 32 == 0) {
            tma::wait_stores();
        }
        __syncwarp();
    }
    /* Puts rows in shared memory, for the TMA. */
    template <int WORDS> __device__ __forceinline__ void put(const uint32_t (&x)[WORDS]) const
    {
        const int lane = ptx::opaque(threadIdx.x % 32), row = lane % 8;
        const uint32_t to = stage + row * 128, piece = (lane / 8 ^ row) * 16;
        if (S::RAGGED || lane == 0) {
            tma::wait_stores_read(); /* place of the last item's rows */
        }
        __syncwarp();
#pragma unroll
        for (int w = 0; w < WORDS; w += 4) {
            const int r = w / (WORDS / 2), g = w / 4 % (WORDS / 8);
            ptx::store_matrices(to + r * 1024 + g / 2 * S::STAGE_CHUNK + (piece ^ g % 2 * 64), x[w],
                                x[w + 1], x[w + 2], x[w + 3]);
        }
        ptx::fence_proxy_async();
        __syncwarp();
    }
};

/* The same straight from the accumulators, where shared memory has no room for O. */
template <class S> struct PieceStore : DirectStore<S::DTYPE> {
    const attn_cuda_forward_params &a;

    __device__ __forceinline__ PieceStore(const attn_cuda_forward_params &a_)
        : DirectStore<S::DTYPE>{a_.problem}, a(a_)
    {
    }
    template <class Warp, int N>
    __device__ __forceinline__ uint32_t box(const Post &post, const Warp &warp, const float (&o)[N],
                                            const float (&factor)[2]) const
    {
        const int lane = threadIdx.x % 32, t = lane % 4;
        uint32_t sum[2] = {};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = warp.first + lane / 4 + 8 * r;
            const bool write = post.item.first_row + i < post.item.sequence.nq;
            char *to = post.o + i * (a.problem.o.stride[1] * 2) + 16 * t;
#pragma unroll
            for (int g = 0; g < N / 16; g++) {
                uint32_t x[4];
                pack_quad<S::BF16>(x, o, g, r, factor[r]);
#pragma unroll
                for (int w = 0; w < 4; w++) {
                    sum[w % 2] = ptx::times_zero<S::BF16>(x[w], sum[w % 2]);
                }
                transpose_quad(x);
                if (write && 32 * g + 8 * t < (int)a.problem.dv) {
                    *(uint4 *)(to + 64 * g) = make_uint4(x[0], x[1], x[2], x[3]);
                }
            }
        }
        return sum[0] | sum[1];
    }
    __device__ __forceinline__ void settle() const
    {
        __syncwarp();
    }
};

/* Ends rows of which all is ordinary, by few instructions, since the code of an epilogue is fetched
 * for every item: each of the warp's rows sees keys, exponents stayed in range, all leave in one
 * box, and nothing but LSE is asked for beside O. Returns false if that is not so, and they are to
 * end each by itself. left: some are not finite, to be done once more with the whole item. */
template <class S, class Warp, class Store>
__device__ __forceinline__ bool finish_boxed(const attn_cuda_forward_params &a, const Post &post,
                                             const Warp &warp, const Rows<S::DV> &rows,
                                             const Store &store, bool &left)
{
    const Item &item = post.item;
    const int lane = threadIdx.x % 32;
    const float l[2] = {quad_sum(fabsf(rows.state[0].l)), quad_sum(fabsf(rows.state[1].l))};
    const int first = warp.WarpRows::row(item, 0);
    bool ordinary = warp.boxed(item);
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++) { /* rows beyond the tensor see no key */
        ordinary = ordinary && (first + lane / 4 + 8 * r >= item.sequence.nq ||
                                (l[r] != 0 && fabsf(rows.state[r].base) <= FAR_BASE));
        factor[r] = l[r] != 0 ? ptx::reciprocal(l[r]) : 0;
        if constexpr (S::DROPS) {
            ordinary = ordinary && !(l[r] != 0 && warp.light[r]);
            factor[r] *= (float)a.problem.dropout.scale;
        }
    }
    if (!__all_sync(~0u, ordinary)) {
        return false;
    }
    const bool odd = lane & 1;
    const float lse = natural_lse(odd ? rows.state[1].base : rows.state[0].base, odd ? l[1] : l[0],
                                  RAISED<S::DTYPE>);
    const uint32_t nan = store.box(post, warp, rows.o, factor) & 0x7fff7fff;
    const int i = lane / 4 + lane % 2 * 8;
    if (a.lse_alone && lane % 4 < 2 && first + i < item.sequence.nq) {
        *(float *)(post.lse + (warp.first + i) * (a.problem.lse.stride[1] * 4)) = lse;
    }
    if (post.ending != ENDS_BOXED && !__all_sync(~0u, nan == 0 && (l[0] + l[1]) * 0 == 0)) {
        store.settle();
        left = post.ending == ENDS_AGAIN;
        return left;
    }
    return true;
}
