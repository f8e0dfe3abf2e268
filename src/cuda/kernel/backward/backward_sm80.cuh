/*
 * backward_sm80.cuh: the backward pass on the tensor cores of any GPU from sm_80 on, where
 * backward_sm90 is not to be had: f32 by split products (mma.cuh), and 16 bits on other GPUs. No
 * sums are shared, so their order depends on the sequence alone:
 *
 *     keys    a CTA for FIXED keys of a KV head: for each head of the group, for each block of rows
 *             that see them:  S^T = K Q^T, dP^T = V dO^T;  dV += P^T dO, dK += dS^T Q
 *     rows    a CTA for FIXED rows of a query head: for each block of keys that they see:
 *             S = Q K^T, dP = dO V^T;  dQ += dS K
 *
 * So both are one thing: two fixed tiles times two streamed ones, of which P and dS are made in
 * registers, the left operands of sums of streamed rows. A block of 64 rows or keys with a result
 * that is not finite is noted, and backward_generic does it again.
 */
#pragma once
#include "cuda/kernel/backward/tile_sm80.cuh"

template <class S, bool KEYS>
__device__ __forceinline__ MmaBlocks mma_blocks(const attn_problem &p, const GradItem &item)
{
    const attn_interval seen =
        KEYS ? grad_rows_of_keys(p, item.sequence, item.first, S::FIXED)
             : attn_mask_range(&p, &item.sequence, item.first, item.first + S::FIXED).hull;
    const int first = (int)(seen.lo / S::STEP), last = (int)((seen.hi + S::STEP - 1) / S::STEP);
    return {first, seen.lo < seen.hi ? last - first : 0, KEYS ? (int)p.group : 1};
}

/* A warp's sums of 16 rows or keys, COLUMNS of them. */
template <class S, bool KEYS> struct MmaSums {
    float first[S::COLUMNS / 2]; /* dK or dQ, without the scale */
    float second[KEYS ? S::COLUMNS / 2 : 1];
    /* f16: P and |dS| of the thread's two keys, or with score steps |dS| of two rows
     * (range_sm90.cuh) */
    static constexpr bool NOTES = !S::BF16 && (KEYS || S::STEPPED);
    float2 weights = {}, scores = {};

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < S::COLUMNS / 2; i++) {
            first[i] = 0, second[KEYS ? i : 0] = 0;
        }
    }

    /* Adds sizes of terms of the thread's two keys or rows. */
    __device__ __forceinline__ void note(float2 &terms, const float (&x)[S::N / 2])
    {
#pragma unroll
        for (int i = 0; i < S::N / 2 && NOTES; i += 4) {
            add_terms(terms, fabsf(x[i]) + fabsf(x[i + 1]), fabsf(x[i + 2]) + fabsf(x[i + 3]));
        }
    }
    /* Whether n terms of one of the warp's keys or rows are too small. All lanes sum both kinds:
     * one that left out the second would keep the others of its warp waiting. */
    __device__ __forceinline__ bool faint(float n) const
    {
        if constexpr (NOTES) {
            const bool of_scores = is_faint(scores, n), of_weights = KEYS && is_faint(weights, n);
            return of_scores || of_weights;
        } else {
            return false;
        }
    }
    static __device__ __forceinline__ bool is_faint(const float2 &terms, float n)
    {
        const float2 sum = of_four_lanes(terms);
        const float least = least_sum(n);
        return (sum.x > 0 && sum.x < least) || (sum.y > 0 && sum.y < least);
    }

    /* Adds the terms that the strip's other warp has met. */
    __device__ __forceinline__ void join_terms()
    {
        if constexpr (NOTES && S::HALVES > 1) {
            __shared__ float4 terms[S::THREADS];
            terms[threadIdx.x] = make_float4(weights.x, weights.y, scores.x, scores.y);
            __syncthreads();
            const float4 other = terms[threadIdx.x ^ (S::THREADS / 2)];
            add_terms(weights, other.x, other.y);
            add_terms(scores, other.z, other.w);
        }
    }
};

/* Packed P or dS that warps of a strip give each other, in shared memory. */
template <class S> struct MmaShared {
    uint4 (&words)[S::THREADS / 32][S::PARTS][S::N / 16][32];

    __device__ __forceinline__ void give(const uint32_t (&x)[S::PARTS][S::N / 4]) const
    {
#pragma unroll
        for (int i = 0; i < S::PARTS * S::N / 16; i++) {
            const uint32_t *const from = x[i / (S::N / 16)] + i % (S::N / 16) * 4;
            words[threadIdx.x / 32][i / (S::N / 16)][i % (S::N / 16)][threadIdx.x % 32] =
                make_uint4(from[0], from[1], from[2], from[3]);
        }
    }
    /* What the strip's warp `half` has given. */
    __device__ __forceinline__ void take(uint32_t (&x)[S::PARTS][S::N / 4], int half) const
    {
#pragma unroll
        for (int i = 0; i < S::PARTS * S::N / 16; i++) {
            const uint4 from = words[threadIdx.x / 32 % S::STRIPS + half * S::STRIPS]
                                    [i / (S::N / 16)][i % (S::N / 16)][threadIdx.x % 32];
            uint32_t *const to = x[i / (S::N / 16)] + i % (S::N / 16) * 4;
            to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
        }
    }
};

/* Adds P X, or dS X, to the warp's columns of sums. It has P of its part of the rows of X; of the
 * others the strip's other warp has. WHICH: P or dS, which have room of their own in turns. */
template <class S, int WHICH>
__device__ __forceinline__ void add_block(float (&sum)[S::COLUMNS / 2], const float (&p)[S::N / 2],
                                          uint32_t x, int half)
{
    uint32_t packed[S::PARTS][S::N / 4];
    mma::pack<S::BF16, S::PARTS>(p, packed);
    if constexpr (S::HALVES == 1) {
        mma::add_rows<S::BF16, S::PARTS, S::D, S::STEP, S::N>(sum, packed, x, 0);
    } else {
        __shared__ uint4 words[S::THREADS / 32][S::PARTS][S::N / 16][32];
        const MmaShared<S> shared = {words};
        const uint32_t columns = x + half * (S::COLUMNS / 64) * S::STEP * 128;
        shared.give(packed);
        ptx::barrier_sync(1 + threadIdx.x / 32 % S::STRIPS, 32 * S::HALVES);
#pragma unroll(S::CROWDED ? 1 : S::HALVES)
        for (int i = 0; i < S::HALVES; i++) {
            shared.take(packed, i);
            mma::add_rows<S::BF16, S::PARTS, S::D, S::STEP, S::N, S::COLUMNS>(sum, packed, columns,
                                                                              i * S::N);
        }
    }
}

/* Stores a warp's 16 rows of sums times a factor, of which `left` are there, from a column on.
 * Returns true if an element is not finite. */
template <int COLUMNS>
__device__ __forceinline__ bool store_strip(const attn_tensor &t, const float (&sum)[COLUMNS / 2],
                                            float factor, int64_t batch, int64_t first,
                                            int64_t head, int64_t left, int column)
{
    const int lane = threadIdx.x % 32;
    const int64_t step = t.stride[3] * (t.dtype == ATTN_F64 ? 8 : t.dtype == ATTN_F32 ? 4 : 2);
    bool bad = false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = lane / 4 + 8 * half;
        if (r >= left || t.data == NULL) {
            continue;
        }
        int left_columns = (int)t.shape[3] - column - lane % 4 * 2;
        char *to = attn_at(&t, batch, first + r, head, 0) + (column + lane % 4 * 2) * step;
#pragma unroll
        for (int i = 2 * half; i < COLUMNS / 2; i += 4, left_columns -= 8, to += 8 * step) {
            const float x = sum[i] * factor, y = sum[i + 1] * factor;
            if (left_columns > 0) {
                store_at(to, t.dtype, x);
                bad |= !(fabsf(x) < INFINITY);
            }
            if (left_columns > 1) {
                store_at(to + step, t.dtype, y);
                bad |= !(fabsf(y) < INFINITY);
            }
        }
    }
    return bad;
}

/* Adds a block to the warp's sums. strip: the first of its fixed rows. */
template <class S, bool KEYS>
__device__ __forceinline__ void sum_block(const MmaTiles<S, KEYS> &tiles,
                                          const MmaTile<S, KEYS> &tile, int n, const MmaPlace &at,
                                          int strip, int half, MmaSums<S, KEYS> &sums)
{
    const int from = half * S::N, other = tiles.row(at) + from;
    const uint32_t statistics = tiles.statistics(n) + 4 * from;
    if (tile.is_hidden(tiles.row(at))) {
        return;
    }
    float w[S::N / 2], x[S::N / 2];
    mma::multiply_rows<S::BF16, S::PARTS, S::D, S::FIXED, S::STEP, S::N>(
        w, tiles.fixed(0), strip, tiles.streamed(n, 0), from);
    tile.weigh(w, x, tiles.head(at), other, statistics);
    if constexpr (KEYS) {
        add_block<S, 1>(sums.second, x, tiles.streamed(n, 1), half);
        sums.note(sums.weights, x);
    }
    mma::multiply_rows<S::BF16, S::PARTS, S::D, S::FIXED, S::STEP, S::N>(
        x, tiles.fixed(1), strip, tiles.streamed(n, 1), from);
    tile.differentiate(x, w, statistics);
    add_block<S, 0>(sums.first, x, tiles.streamed(n, 0), half);
    sums.note(sums.scores, x);
}

template <class S, bool KEYS>
__device__ __forceinline__ bool store_results(const MmaTiles<S, KEYS> &tiles, int strip, int half,
                                              const MmaSums<S, KEYS> &sums)
{
    const GradItem &item = tiles.item;
    const attn_sequence &s = item.sequence;
    const attn_gradients &grads = tiles.a.grads;
    const int64_t at = item.first + strip, first = (KEYS ? s.k_first : s.q_first) + at,
                  left = (KEYS ? s.k_rows : s.nq) - at;
    const float of_weights = power_of_2(S::BF16 ? 0 : -LIFT), of_scores = of_weights / tiles.unit;
    const int column = half * S::COLUMNS;
    bool bad = store_strip<S::COLUMNS>(KEYS ? grads.dk : grads.dq, sums.first,
                                       of_scores * (float)grads.problem.scale, s.tensor, first,
                                       item.head, left, column);
    if constexpr (KEYS) {
        bad |= store_strip<S::COLUMNS>(grads.dv, sums.second, of_weights, s.tensor, first,
                                       item.head, left, column);
    } else if constexpr (!S::BF16) {
        bad |= has_faint_rows(tiles.a, item, strip + threadIdx.x % 32 / 4);
    }
    return bad;
}

/* Notes the item's blocks of 64 rows or keys. */
template <class S, bool KEYS>
__device__ __forceinline__ void note_blocks(const attn_cuda_backward_params &a,
                                            const GradItem &item)
{
    const int64_t end = KEYS ? item.sequence.k_rows : item.sequence.nq;
    for (int64_t at = item.first; at < item.first + S::FIXED && at < end; at += 64) {
        const int64_t note = grad_note(a.grads.problem, a.items, item, at);
        (KEYS ? a.bad_keys : a.bad_rows)[note] = 1;
    }
}

template <class S, bool KEYS>
__device__ __forceinline__ void backward_sm80(const attn_cuda_backward_params &a)
{
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ GradItem item; /* in shared memory, since registers are few */
    __shared__ MmaBlocks blocks;
    __shared__ attn_band band;
    if (threadIdx.x == 0) {
        item = grad_item(a.grads.problem, a.items, blockIdx.x);
        if (!item.empty) {
            blocks = mma_blocks<S, KEYS>(a.grads.problem, item);
            band = attn_mask_band(&a.grads.problem, &item.sequence);
        }
    }
    __syncthreads();
    if (item.empty) {
        return;
    }
    const int warp = ptx::uniform(threadIdx.x / 32), strip = warp % S::STRIPS * 16,
              half = warp / S::STRIPS, heads = blocks.count > 0 ? blocks.heads : 0;
    MmaTiles<S, KEYS> tiles(a, item, blocks, ptx::shared_address(shared));
    MmaSums<S, KEYS> sums;
    sums.clear();
    MmaPlace at = {0, 0};
    if (heads > 0) {
        tiles.load_fixed();
        tiles.start(0, at);
    }
    const MmaTile<S, KEYS> tile(tiles, band, strip);
#pragma unroll 1
    for (int n = 0; at.head < heads; n ^= 1, at = at.next(blocks)) { /* of stages the last bit */
        const MmaPlace next = at.next(blocks);
        tiles.finish(n, at);
        if (next.head < heads) {
            tiles.start(n + 1, next);
        }
        sum_block(tiles, tile, n, at, strip, half, sums);
    }
    sums.join_terms();
    const bool judges = KEYS || a.grads.problem.softcap > 0; /* other rows: has_faint_rows */
    bool bad = judges && sums.faint((float)(blocks.all() * S::STEP));
    /* f32 at d = 256 has no register for it in the loop */
    const int stored = S::CROWDED ? ptx::thread() / 32 % S::STRIPS * 16 : strip;
    bad |= store_results(tiles, stored, half, sums);
    if (__syncthreads_or(bad) && threadIdx.x == 0) {
        note_blocks<S, KEYS>(a, item);
    }
}

#define ATTN_MMA_KERNEL(name, keys, stepped, dtype, d, fixed, step, halves, ctas)                 \
    extern "C" __global__ __launch_bounds__(                                                      \
        2 * (fixed) * (halves),                                                                   \
        ctas) void attn_backward_sm80_##name(const __grid_constant__ attn_cuda_backward_params a) \
    {                                                                                             \
        backward_sm80<MmaShape<dtype, d, fixed, step, halves, stepped>, keys>(a);                 \
    }
