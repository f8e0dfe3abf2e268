/*
 * forward_sm80.cuh: the forward pass on the tensor cores of any GPU from sm_80 on: f32 by split
 * products (mma.cuh), and bf16 and f16 where forward_sm90 is not to be had: other GPUs, scores with
 * several steps, dropout, pages, ATTN_PRECISE. Kernels are forward_sm80.cu, with dropout
 * forward_sm80_dropout.cu, and of 16 bits with ATTN_PRECISE forward_sm80_precise.cu and
 * forward_sm80_precise_dropout.cu: their P has three parts, and sums are those of f32.
 *
 * A CTA does one item; a warp has 16 of its rows and all keys, 16 bits at a time in shared memory:
 *
 *     16 bit:  Q [BM][D] | K [2][BN][D] | V [2][BN][D] | bounds [BM]
 *     f32:     Q [3][BM][D] | K [3][BN][D] | V [3][BN][D] | K, V as they come,
 *              f32 [BN][D] each | bounds [BM]
 *
 *     for each block of keys, from right to left:
 *         wait for K, V (f32: split them into parts); start loading the next ones
 *         S = Q K^T, score steps, mask, softmax, dropout
 *         O = O alpha + P V            f32: the block summed afresh, then added once, as on the CPU
 */
#pragma once
#include "cuda/kernel/load/pages.cuh"
#include "cuda/kernel/mma/products.cuh"
#include "cuda/kernel/rows/dropped.cuh"
#include "cuda/kernel/rows/rows.cuh"
#include "cuda/shape.h"

template <bool DROPS, bool PRECISE_, int DTYPE_, int D_, int WARPS_, int BN_> struct Shape {
    static constexpr bool PRECISE = PRECISE_; /* of 16 bits */
    static constexpr int DTYPE = DTYPE_, D = D_, BN = BN_, BM = 16 * WARPS_, THREADS = 32 * WARPS_;
    static constexpr int P_DTYPE = PRECISE ? ATTN_F32 : DTYPE; /* whose probabilities P are */
    using Drop = Dropout<P_DTYPE, DROPS>;
    static constexpr int P_PARTS = P_DTYPE == ATTN_F32 ? 3 : 1;
    static constexpr bool SHORTENS = P_PARTS > 1; /* leaves out columns of zeros */
    static constexpr bool BF16 = DTYPE != ATTN_F16;
    static constexpr int PARTS = DTYPE == ATTN_F32 ? 3 : 1, STAGES = PARTS == 1 ? 2 : 1;
    static constexpr int Q_PART = BM * D * 2, KV_PART = BN * D * 2, KV_BYTES = PARTS * KV_PART;
    static constexpr int RAW_BYTES = PARTS == 1 ? 0 : BN * D * 4;
    static constexpr int BOUNDS_AT = PARTS * Q_PART + 2 * STAGES * KV_BYTES + 2 * RAW_BYTES;
    static_assert(BOUNDS_AT + BM * (int)sizeof(int2) == ATTN_SM80_BYTES(DTYPE, D, WARPS_, BN),
                  "shape.h");
};

/* Where the rows of a block in pages lie, and those of the next one. */
template <class S> struct Places {
    PagePlace of[2][S::BN];
};

/* The item's operands and their places in shared memory. */
template <class S> struct Tiles {
    const attn_cuda_forward_params &a;
    const Item &item;
    bool &nonfinite; /* a tile of V held a value that is not finite */
    Places<S> &places;
    uint32_t q, k, v, raw;

    __device__ __forceinline__ Tiles(const attn_cuda_forward_params &a_, const Item &item_,
                                     bool &nonfinite_, Places<S> &places_, uint32_t shared)
        : a(a_), item(item_), nonfinite(nonfinite_), places(places_), q(shared),
          k(q + S::PARTS * S::Q_PART), v(k + S::STAGES * S::KV_BYTES),
          raw(v + S::STAGES * S::KV_BYTES)
    {
    }

    /* Loads Q, and starts loading the first block of K and V. */
    __device__ __forceinline__ void begin(int block)
    {
        find(0, block);
        load_q();
        if (a.problem.paged) {
            __syncthreads();
        }
        start(0, block);
    }

    /* Starts loading block `block` of K and V as the n-th of the item. */
    __device__ __forceinline__ void start(int n, int block)
    {
        const uint32_t stage = n % S::STAGES * S::KV_BYTES;
        load(S::PARTS == 1 ? k + stage : raw, a.problem.k, n, block * S::BN,
             a.aligned & ATTN_CUDA_ALIGNED_K);
        load(S::PARTS == 1 ? v + stage : raw + S::RAW_BYTES, a.problem.v, n, block * S::BN,
             a.aligned & ATTN_CUDA_ALIGNED_V);
        ptx::copy_async_commit();
        find(n + 1, block - 1);
    }
    /* Starts loading the rows of one tensor from key `key` on. */
    __device__ __forceinline__ void load(uint32_t to, const attn_tensor &t, int n, int key,
                                         bool aligned)
    {
        const int rows = (int)item.sequence.nk - key, kv_head = item.head / (int)a.problem.group;
        if (a.problem.paged) {
            load_placed<S::PARTS == 1 ? 2 : 4, S::BN, S::D, S::THREADS>(
                t, places.of[n % 2], kv_head, rows, aligned, [&](int r, int piece) {
                    return S::PARTS == 1 ? mma::piece_address<S::BN>(to, r, piece)
                                         : to + r * (S::D * 4) + piece * 16;
                });
            return;
        }
        const char *first = attn_kv_at(&t, &item.sequence, kv_head, key, 0);
        if constexpr (S::PARTS == 1) {
            load_rows<S::BN, S::D, S::THREADS>(to, t, first, rows, aligned);
        } else {
            load_raw<S::BN, S::D, S::THREADS>(to, t, first, rows, aligned);
        }
    }
    /* Finds the places of the n-th block's rows, which threads read behind a barrier. */
    __device__ __forceinline__ void find(int n, int block)
    {
        if (a.problem.paged && block >= 0) {
            find_places(places.of[n % 2], a, item.sequence, block * S::BN);
        }
    }

    /* Waits until the item's n-th block is there for all threads, and all are done with the block
     * before it. even: all rows see all of its keys. */
    __device__ __forceinline__ void finish(int n, bool even)
    {
        ptx::copy_async_wait<0>();
        if (!even && clean(n)) {
            nonfinite = true;
        }
        __syncthreads();
        if constexpr (S::PARTS > 1) {
            split_raw<S::BN, S::D, S::THREADS, S::BN>(k, 0, raw);
            split_raw<S::BN, S::D, S::THREADS, S::BN>(v, 0, raw + S::RAW_BYTES);
            __syncthreads();
        }
    }

    /* Cleans the thread's part of V (clean.cuh). */
    __device__ __forceinline__ bool clean(int n)
    {
        if constexpr (S::PARTS == 1) {
            return clean_rows<S::BF16, S::BN, S::D, S::THREADS>(v + n % S::STAGES * S::KV_BYTES);
        } else {
            return clean_raw<S::BN, S::D, S::THREADS>(raw + S::RAW_BYTES);
        }
    }

    __device__ __forceinline__ void load_q()
    {
        const attn_tensor &t = a.problem.q;
        const char *first =
            attn_at(&t, item.sequence.tensor, item.sequence.q_first + item.first_row, item.head, 0);
        const int rows = (int)(item.sequence.nq_used - item.first_row);
        const bool aligned = a.aligned & ATTN_CUDA_ALIGNED_Q;
        if constexpr (S::PARTS == 1) {
            load_rows<S::BM, S::D, S::THREADS>(q, t, first, rows, aligned);
        } else {
            constexpr int EACH =
                2 * S::BN < S::BM ? 2 * S::BN : S::BM; /* only as much as registers hold */
#pragma unroll 1
            for (int r = 0; r < S::BM; r += EACH) {
                load_raw<EACH, S::D, S::THREADS>(raw, t, first + r * t.stride[1] * 4, rows - r,
                                                 aligned);
                ptx::copy_async_commit();
                ptx::copy_async_wait<0>();
                split_raw<EACH, S::D, S::THREADS, S::BM>(q, r, raw);
            }
        }
    }
};

/* Exponents whose bases lie so far below the score that they come from. */
template <int BY> struct Raised : Linear {
    __device__ __forceinline__ float base(float m) const
    {
        return Linear::base(m) - BY;
    }
};

/* The rows of a warp, whose keys may lie in pages. */
template <class Warp> struct RowsOverPages : Warp {
    static constexpr bool PAGED = true;

    __device__ __forceinline__ explicit RowsOverPages(const Warp &warp) : Warp(warp)
    {
    }
};

template <class S>
__device__ __forceinline__ void run_blocks(const attn_cuda_forward_params &a, Tiles<S> &tiles,
                                           const Blocks &b, const WarpRows &warp,
                                           typename S::Drop &drop, Rows<S::D> &rows)
{
#pragma unroll 1
    for (int i = 0; i < b.count; i++) {
        const int block = b.last - i;
        const uint32_t stage = i % S::STAGES * S::KV_BYTES;
        float s[S::BN / 2];
        bool few[2];
        uint32_t p[S::P_PARTS][S::BN / 4];
        const bool uneven = attn_mask_differs(&a.problem) && b.masked(block);
        tiles.finish(i, !(a.steps_sm90.masks || uneven));
        if (i + 1 < b.count) {
            tiles.start(i + 1, block - 1);
        }
        mma::multiply_rows<S::BF16, S::PARTS, S::D, S::BM, S::BN, S::BN, S::PRECISE>(
            s, tiles.q, warp.first, tiles.k + stage, 0, S::SHORTENS ? (int)a.problem.d : S::D);
        if (a.steps) {
            score_block(a.problem, tiles.item, warp, block * S::BN, s);
        } else if (b.masked(block)) {
            mask_block(warp, block * S::BN, s, few);
        }
        few[0] = few[1] = true; /* bases are exact: maxima are taken in every block */
        /* f16's rows end with bases so far down, which else come so from move_bases */
        const Raised<S::PRECISE ? (int)RAISED<S::DTYPE> : 0> e = {{a.scale_log2}};
        drop.update_bases(e, s, few, rows);
        probabilities<S::P_DTYPE, NEAR_ALL>(s, e, rows.state, p);
        drop.take(a, block * S::BN, p);
        mma::add_rows<S::BF16, S::PARTS, S::D, S::BN, S::BN>(
            rows.o, p, tiles.v + stage, 0, S::SHORTENS ? (int)a.problem.dv : S::D);
    }
}

template <class S> __device__ __forceinline__ void forward(const attn_cuda_forward_params &a)
{
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ Item item; /* in shared memory, since registers are few */
    __shared__ Blocks b;
    __shared__ bool nonfinite;
    __shared__ typename S::Drop::Place place;
    __shared__ Places<S> places;
    if (threadIdx.x == 0) {
        nonfinite = false;
        any_item(a, blockIdx.x, item);
        item.band = attn_mask_band(&a.problem, &item.sequence);
        b = key_blocks(item.band, (int)item.first_row, S::BM, S::BN);
        S::Drop::find_place(a, item, item.first_row, place);
    }
    __syncthreads();
    if (item.empty) {
        return;
    }
    Tiles<S> tiles(a, item, nonfinite, places, ptx::shared_address(shared));
    const int first = threadIdx.x / 32 * 16, bounds = S::BOUNDS_AT;
    const WarpRows warp = {first, (int2 *)(shared + bounds) + first};
    if (b.count == 0) {
        finish_empty<S::DTYPE>(a.problem, item, warp);
        return;
    }
    Rows<S::D> rows;
    rows.state[0] = rows.state[1] = {NO_BASE, -0.0f, -INFINITY};
#pragma unroll
    for (int i = 0; i < S::D / 2; i++) {
        rows.o[i] = 0;
    }
    tiles.begin(b.last);
    const bool masked = a.steps || b.any_masked();
    if (masked) {
        note_bounds(item, warp);
    }
    typename S::Drop drop(&place);
    run_blocks<S>(a, tiles, b, warp, drop, rows);
    finish_rows<S::DTYPE, S::D, true, (S::P_PARTS > 1)>(a, item, masked, nonfinite,
                                                        RowsOverPages(drop.rows(a, warp)), rows,
                                                        DirectStore<S::DTYPE>{a.problem});
}

#define ATTN_MMA_FORWARD(name, drops, precise, dtype, d, warps, bn, ctas)                      \
    extern "C" __global__ __launch_bounds__(32 * (warps), ctas) void attn_forward_sm80_##name( \
        const __grid_constant__ attn_cuda_forward_params a)                                    \
    {                                                                                          \
        forward<Shape<drops, precise, dtype, d, warps, bn>>(a);                                \
    }
