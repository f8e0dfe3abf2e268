/*
 * shape_sm80.cuh: the compile-time shape of a backward_sm80 kernel, its tiles in shared memory and
 * their loads by the CTA's threads:
 *
 *     fixed 2 [FIXED][D] | STAGES of streamed 2 [STEP][D] | f32: streamed ones as they come |
 *     STAGES of statistics [2][STEP]
 *
 * keys: fixed are K and V of an item's keys, streamed Q and dO with LSE and delta. rows: fixed are
 * Q and dO, streamed K and V. f32 lies in three bf16 parts (mma.cuh); its kernels take rows of 16
 * bits, too, and beyond d = 128 have no room for rows as they come (parts_sm80.cuh).
 */
#pragma once
#include "cuda/kernel/backward/parts_sm80.cuh"
#include "cuda/kernel/backward/range_sm90.cuh"
#include "cuda/kernel/mma/products.cuh"
#include "cuda/shape.h"

/* A warp has 16 of the fixed rows; of a tile of streamed ones a HALVES-th part for P and dS, and a
 * HALVES-th part of the columns for sums. STEPPED: there may be score steps and dropout. */
template <int DTYPE_, int D_, int FIXED_, int STEP_, int HALVES_, bool STEPPED_> struct MmaShape {
    static constexpr bool STEPPED = STEPPED_;
    static constexpr int DTYPE = DTYPE_, D = D_, FIXED = FIXED_, STEP = STEP_, HALVES = HALVES_;
    static constexpr int STRIPS = FIXED / 16, THREADS = 32 * STRIPS * HALVES, N = STEP / HALVES,
                         COLUMNS = D / HALVES;
    static constexpr bool BF16 = DTYPE != ATTN_F16; /* the type of operands */
    static constexpr int PARTS = DTYPE == ATTN_F32 ? 3 : 1, STAGES = PARTS == 1 ? 2 : 1;
    static constexpr bool RAW = PARTS > 1 && D <= 128, /* f32 lies as it comes, at first */
        CROWDED = PARTS > 1 && !RAW;                   /* all registers are taken */
    static constexpr int FIXED_BYTES = PARTS * FIXED * D * 2, STEP_BYTES = PARTS * STEP * D * 2,
                         RAW_BYTES = RAW ? STEP * D * 4 : 0;
    static constexpr int STREAMED_AT = 2 * FIXED_BYTES,
                         RAW_AT = STREAMED_AT + STAGES * 2 * STEP_BYTES,
                         STATISTICS_AT = RAW_AT + 2 * RAW_BYTES;
    static_assert(STATISTICS_AT + STAGES * 2 * STEP * 4 ==
                      ATTN_GRAD_SM80_BYTES(DTYPE, D, FIXED, STEP),
                  "shape.h");
    static_assert(2 * STEP <= THREADS, "a thread loads one number of the statistics");
    static_assert(HALVES == 1 || COLUMNS % 64 == 0, "chunks of 64 columns");
};

/* The blocks that an item meets: of rows of each head of a group, or of keys. */
struct MmaBlocks {
    int first, count; /* of one head */
    int heads;

    __device__ __forceinline__ int all() const
    {
        return count * heads;
    }
};

/* A block: the head of its group, and its number among the blocks of that. */
struct MmaPlace {
    int head, block;

    __device__ __forceinline__ MmaPlace next(const MmaBlocks &blocks) const
    {
        const bool last = block + 1 == blocks.count;
        return {head + last, last ? 0 : block + 1};
    }
};

/* Starts copying a tile of streamed rows that are aligned, 16 bytes at a time: f32 as it comes. */
template <class S> __device__ __forceinline__ void copy_streamed(uint32_t to, const MmaRows &x)
{
    constexpr int SIZE = S::PARTS == 1 ? 2 : 4, PIECES = S::D * SIZE / 16,
                  APART = S::THREADS / PIECES, TIMES = S::STEP / APART,
                  STRIDE = S::PARTS == 1 ? APART * 128 : S::THREADS * 16;
    static_assert((S::PARTS > 1 || APART % 8 == 0) && TIMES * APART == S::STEP,
                  "rows alike in the swizzle");
    const int row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES,
              bytes = min(max((int)x.tensor.shape[3] * SIZE - piece * 16, 0), 16);
    const int64_t row_bytes = x.tensor.stride[1] * SIZE;
    const char *from = x.first + row * row_bytes + piece * 16;
    const uint32_t place =
        S::PARTS == 1 ? mma::piece_address<S::STEP>(to, row, piece) : to + threadIdx.x * 16;
#pragma unroll
    for (int i = 0; i < TIMES; i++, from += APART * row_bytes) {
        const bool inside = bytes > 0 && row + i * APART < x.there;
        ptx::copy_async_16(place + i * STRIDE, inside ? from : x.first, inside ? bytes : 0);
    }
}

/* KEYS: the item has keys. */
template <class S, bool KEYS> struct MmaTiles {
    const attn_cuda_backward_params &a;
    const GradItem &item;
    const MmaBlocks &blocks;
    uint32_t shared;
    float unit;          /* factor of dP and delta (range_sm90.cuh) */
    float statistic = 0; /* on its way to shared memory */

    __device__ __forceinline__ MmaTiles(const attn_cuda_backward_params &a_, const GradItem &item_,
                                        const MmaBlocks &blocks_, uint32_t shared_)
        : a(a_), item(item_), blocks(blocks_), shared(shared_),
          unit(score_unit<S::BF16>(a_, item_.sequence.index, kv_head()))
    {
    }

    __device__ __forceinline__ int kv_head() const
    {
        return KEYS ? (int)item.head : (int)item.head / (int)a.grads.problem.group;
    }

    __device__ __forceinline__ uint32_t fixed(int which) const
    {
        return shared + which * S::FIXED_BYTES;
    }
    __device__ __forceinline__ uint32_t streamed(int n, int which) const
    {
        return shared + S::STREAMED_AT + (n % S::STAGES * 2 + which) * S::STEP_BYTES;
    }
    __device__ __forceinline__ uint32_t raw(int which) const
    {
        return shared + S::RAW_AT + which * S::RAW_BYTES;
    }
    /* LSE, then delta, of STEP rows */
    __device__ __forceinline__ uint32_t statistics(int n) const
    {
        return shared + S::STATISTICS_AT + n % S::STAGES * 2 * S::STEP * 4;
    }

    /* The query head and the first row or key of a block. */
    __device__ __forceinline__ int head(const MmaPlace &at) const
    {
        return KEYS ? (int)item.head * blocks.heads + at.head : (int)item.head;
    }
    __device__ __forceinline__ int row(const MmaPlace &at) const
    {
        return (blocks.first + at.block) * S::STEP;
    }

    /* Q, dO or K, V of a query head; rows that are not in use may hold anything. */
    __device__ __forceinline__ MmaRows queries(int which, int query_head, int first) const
    {
        const attn_tensor &t = which == 0 ? a.grads.problem.q : a.grads.d_o;
        const attn_sequence &s = item.sequence;
        return {t, attn_at(&t, s.tensor, s.q_first + first, query_head, 0), (int)s.nq_used - first,
                (a.aligned & (which == 0 ? ATTN_CUDA_ALIGNED_Q : ATTN_CUDA_ALIGNED_D_O)) != 0};
    }
    __device__ __forceinline__ MmaRows keys(int which, int first) const
    {
        const attn_tensor &t = which == 0 ? a.grads.problem.k : a.grads.problem.v;
        const attn_sequence &s = item.sequence;
        return {t, attn_at(&t, s.tensor, s.k_first + first, kv_head(), 0), (int)s.nk - first,
                (a.aligned & (which == 0 ? ATTN_CUDA_ALIGNED_K : ATTN_CUDA_ALIGNED_V)) != 0};
    }

    /* Loads the fixed rows, without waiting but for f32. */
    __device__ __forceinline__ void load_fixed()
    {
#pragma unroll 1
        for (int which = 0; which < 2; which++) {
            const MmaRows x = KEYS ? keys(which, (int)item.first)
                                   : queries(which, (int)item.head, (int)item.first);
            if constexpr (S::PARTS == 1) {
                load_rows<S::FIXED, S::D, S::THREADS>(fixed(which), x.tensor, x.first, x.there,
                                                      x.aligned);
            } else {
                load_parts<S::FIXED, S::D, S::THREADS>(fixed(which), x);
            }
        }
    }

    __device__ __forceinline__ MmaRows others(int which, const MmaPlace &at) const
    {
        return KEYS ? queries(which, head(at), row(at)) : keys(which, row(at));
    }

    /* Starts loading the item's n-th block, but for what `finish` loads. */
    __device__ __forceinline__ void start(int n, const MmaPlace &at)
    {
#pragma unroll
        for (int which = 0; which < 2; which++) {
            const uint32_t to = S::PARTS == 1 ? streamed(n, which) : raw(which);
            const MmaRows x = others(which, at);
            if constexpr (S::PARTS == 1) {
                if (x.aligned) {
                    copy_streamed<S>(to, x);
                } else {
                    load_rows<S::STEP, S::D, S::THREADS>(to, x.tensor, x.first, x.there, false);
                }
            } else if constexpr (S::RAW) {
                if (x.aligned) {
                    copy_streamed<S>(to, x);
                } else {
                    load_widened<S::STEP, S::D, S::THREADS>(to, x);
                }
            }
        }
        ptx::copy_async_commit();
        if (KEYS && threadIdx.x < 2 * S::STEP) {
            statistic =
                load_statistic(head(at), row(at) + threadIdx.x % S::STEP, threadIdx.x >= S::STEP);
        }
    }

    /* LSE or delta of a row; one that is not there has P = 0. LSE without score steps in exponents
     * of 2, if not of f32; of f16 less, by which P is as range_sm90.cuh has it. */
    __device__ __forceinline__ float load_statistic(int query_head, int query, bool delta) const
    {
        if (query >= item.sequence.nq_used) {
            return delta ? 0 : INFINITY;
        }
        const int64_t at = grad_row_place(a.grads.problem, item.sequence, query_head) + query;
        if (delta) {
            return ((const float *)a.delta)[at] * unit;
        }
        const float lse = ((const float *)a.lse)[at];
        return S::PARTS > 1 || S::STEPPED ? lse
                                          : fmaf(lse, 1.4426950408889634f, S::BF16 ? -0.0f : -LIFT);
    }

    /* Waits until block n is there for all threads, and all are done with the block before it. */
    __device__ __forceinline__ void finish(int n, const MmaPlace &at)
    {
        const uint32_t place = statistics(n) + 4 * threadIdx.x;
        ptx::copy_async_wait<0>();
        if constexpr (S::PARTS == 1) {
            put_statistic(place);
            __syncthreads();
        } else {
            __syncthreads();
            put_statistic(place);
            split_block(n, 0, at);
            split_block(n, 1, at);
            __syncthreads();
        }
    }
    __device__ __forceinline__ void split_block(int n, int which, const MmaPlace &at) const
    {
        if constexpr (S::RAW) {
            split_raw<S::STEP, S::D, S::THREADS, S::STEP, 4>(streamed(n, which), 0, raw(which));
        } else {
            load_parts<S::STEP, S::D, S::THREADS>(streamed(n, which), others(which, at));
        }
    }
    __device__ __forceinline__ void put_statistic(uint32_t place) const
    {
        if (KEYS && threadIdx.x < 2 * S::STEP) {
            ptx::store_shared_4(place, statistic);
        }
    }
};
