/*
 * split_sm90.cuh: keys split between CTAs, where a sequence has few rows and many keys: each split
 * of an item leaves sums of its own in the GPU's memory, and a kernel after forward_sm90 merges
 * them, a warp for each row, always in the same order. How an item is split follows from its own
 * blocks of keys and from how many rows and heads a sequence has, so a row's bits do not depend on
 * the batch.
 *
 * Blocks are counted from the right: split 0 has the rightmost ones. A row of a split is the sums
 * of probabilities times V as they are, relative to 2^base (softmax.cuh), and a state: base, the
 * sum of probabilities (0: it saw no key; NaN: it is to be done again, alone), the largest score;
 * NaN if the second half of a WideShape's columns is to be done again, else 0. A WideShape's sums
 * lie in strips (strips_sm90.cuh).
 */
#pragma once
#include "cuda/kernel/forward/shape_sm90.cuh"
#include "cuda/kernel/rows/rows.cuh"

/* The number of the first row of split 0 of an item. */
__device__ __forceinline__ int64_t first_part(const attn_cuda_forward_params &a, uint32_t column,
                                              uint32_t block)
{
    const attn_cuda_schedule &s = a.schedule;
    return ((int64_t)column * s.blocks + block) * s.splits * a.parts.rows;
}

/* The place of one of the warp's rows in a.parts, or -1 where it is not wanted. */
template <class Warp>
__device__ __forceinline__ int64_t part_row(const attn_cuda_forward_params &a, const Post &post,
                                            const Warp &warp, int i)
{
    const bool used = warp.row(post.item, i) < post.item.sequence.nq_used;
    return used ? post.part + warp.first + i : -1;
}

/* SHARED: the other group writes the last word. */
template <bool SHARED>
__device__ __forceinline__ void store_state(const attn_cuda_forward_params &a, int64_t row,
                                            float base, float l, float m)
{
    float *to = a.parts.states + row * 4;
    if (SHARED) {
        to[0] = base, to[1] = l, to[2] = m;
    } else {
        *(float4 *)to = make_float4(base, l, m, 0);
    }
}

/* Sums of a strip whose first row is `row`, from 8 columns number `eight` on: 32 times four. */
__device__ __forceinline__ float4 *strip_sums(const attn_cuda_forward_params &a, int64_t row,
                                              int eight)
{
    return (float4 *)(a.parts.sums + row * a.parts.columns) + 32 * eight;
}

/* Stores the sums of a warp's rows, a strip, as its threads have them, if some are wanted. */
template <class S, class Warp>
__device__ __forceinline__ void store_strip(const attn_cuda_forward_params &a, const Post &post,
                                            const Warp &warp, const Rows<S::DV> &rows,
                                            const bool (&seen)[2])
{
    const int lane = threadIdx.x % 32;
    if ((seen[0] && part_row(a, post, warp, lane / 4) >= 0) ||
        (seen[1] && part_row(a, post, warp, lane / 4 + 8) >= 0)) {
        float4 *to = strip_sums(a, post.part + warp.first, warp.column() / 8) + lane;
#pragma unroll
        for (int i = 0; i < S::DV / 8; i++) {
            to[32 * i] =
                make_float4(rows.o[4 * i], rows.o[4 * i + 1], rows.o[4 * i + 2], rows.o[4 * i + 3]);
        }
    }
}

/* Ends a split's rows. Returns true if some row is done again. */
template <class S, class Warp>
__device__ __forceinline__ bool finish_split(const attn_cuda_forward_params &a, const Post &post,
                                             bool masked, const Warp &warp, const Rows<S::DV> &rows)
{
    const int lane = threadIdx.x % 32;
    const float l[2] = {quad_sum(fabsf(rows.state[0].l)), quad_sum(fabsf(rows.state[1].l))};
    const bool seen[2] = {l[0] != 0, l[1] != 0};
    const bool used[2] = {true, true}; /* others are not written */
    uint32_t careful = careful_rows(rows, l, used, masked);
    if (__builtin_expect(post.nonfinite, false)) {
        careful |=
            nonfinite_rows<S::DTYPE, S::WIDEST, S::SCORES != ATTN_CUDA_SCALED>(a, post.item, warp);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int64_t row = part_row(a, post, warp, lane / 4 + 8 * r);
        if (row < 0) {
            continue;
        }
        if (lane % 4 == 0) {
            const bool again = careful >> (lane + r) & 1;
            if (warp.column() > 0) {
                a.parts.states[row * 4 + 3] = again ? NAN : 0;
            } else {
                store_state<S::SHARED>(a, row, rows.state[r].base, again ? NAN : l[r],
                                       rows.state[r].m);
            }
        }
        if (seen[r] && !S::SHARED) {
            float *to = a.parts.sums + row * a.parts.columns + warp.column() + 2 * (lane % 4);
#pragma unroll
            for (int i = 0; i < S::DV / 8; i++) {
                *(float2 *)(to + 8 * i) =
                    make_float2(rows.o[4 * i + 2 * r], rows.o[4 * i + 2 * r + 1]);
            }
        }
    }
    if constexpr (S::SHARED) {
        store_strip<S>(a, post, warp, rows, seen);
    }
    return careful != 0;
}

/* Ends a split whose rows see no key. */
template <class Warp>
__device__ __forceinline__ void finish_empty_split(const attn_cuda_forward_params &a,
                                                   const Post &post, const Warp &warp)
{
    const int lane = threadIdx.x % 32;
    const int64_t row = lane < 16 ? part_row(a, post, warp, lane) : -1;
    if (row >= 0 && warp.column() == 0) {
        store_state<false>(a, row, 0, 0, 0);
    }
}

/* ---- The merge ------------------------------------------------------------------------------- */

/* Merges row `w` of O with one warp. Lane i reads the state of split i, and lane t columns 2 t, 2 t
 * + 1, 2 t + 64, .. of the sums of every split. WIDEST: the largest head dim; COLUMNS: columns of
 * O. */
template <int DTYPE, int WIDEST, int COLUMNS>
__device__ __forceinline__ void merge_row(const attn_cuda_forward_params &a, OutputRow &w,
                                          int64_t part)
{
    const int lane = threadIdx.x % 32, splits = a.schedule.splits;
    const int64_t rows = a.parts.rows;
    float4 state = make_float4(0, 0, 0, 0);
    float o[COLUMNS / 32] = {};
    if (w.seen && lane < splits) {
        state = *(const float4 *)(a.parts.states + (part + lane * rows) * 4);
    }
    if (__any_sync(~0u, !(state.y + state.w < INFINITY))) {
        careful_row<DTYPE, WIDEST, true, true>(a, w);
        return;
    }
    const bool seen = state.y != 0;
    const uint32_t written = __ballot_sync(~0u, seen);
    const float base = warp_max(seen ? state.x : -INFINITY),
                m = warp_max(seen ? state.z : -INFINITY);
    const float share = seen ? ptx::exp2(state.x - base) : 0;
    const float l = warp_sum(state.y * share);
    const float *sums = a.parts.sums + part * a.parts.columns + 2 * lane;
#pragma unroll 8
    for (int i = 0; i < splits; i++, sums += rows * a.parts.columns) {
        const float times = __shfl_sync(~0u, share, i);
#pragma unroll
        for (int j = 0; j < COLUMNS / 64; j++) {
            if (64 * j + 2 * lane < a.parts.columns) {
                const float2 x = *(const float2 *)(sums + 64 * j);
                /* what was written counts times 0 as well: it may be NaN */
                o[2 * j] += written >> i & 1 ? x.x * times : 0;
                o[2 * j + 1] += written >> i & 1 ? x.y * times : 0;
            }
        }
    }
    w.seen = l != 0;
    const float2 factors = finish_row(a.problem, w, base, l, __fmul_rn(m, a.scale_log2) * LN2,
                                      RAISED<DTYPE>, lane == 0);
#pragma unroll
    for (int j = 0; j < COLUMNS / 32; j++) {
        const int column = 64 * (j / 2) + 2 * lane + j % 2;
        if (column < a.problem.dv) {
            store_element<DTYPE>(
                a.problem.o, attn_at(&a.problem.o, w.s.tensor, w.s.q_first + w.row, w.head, column),
                w.seen ? o[j] * factors.x * factors.y : 0);
        }
    }
}

/* Merges all rows of O: a warp each, the heads of a query side by side. */
template <int DTYPE, int WIDEST, int COLUMNS>
__device__ __forceinline__ void merge(const attn_cuda_forward_params &a)
{
    const attn_problem &p = a.problem;
    const attn_cuda_schedule &s = a.schedule;
    const uint32_t index = blockIdx.x * 4 + threadIdx.x / 32, heads = (uint32_t)p.heads,
                   nq = (uint32_t)p.q.shape[1];
    const uint32_t rows = index / heads;
    if (rows >= (uint32_t)p.batch * nq) {
        return;
    }
    ptx::wait_for_last_launch();
    const attn_sequence sequence = attn_problem_sequence(&p, rows / nq);
    const int head = (int)(index % heads), row = (int)(rows % nq), within = row % s.rows;
    const uint32_t column =
        (uint32_t)sequence.index * (uint32_t)s.heads + (uint32_t)(head / s.fold);
    const int place = within / s.piece * 64 + within % s.piece * s.fold + head % s.fold;
    OutputRow w = {sequence, head, row, row < sequence.nq_used};
    merge_row<DTYPE, WIDEST, COLUMNS>(a, w,
                                      first_part(a, column, (uint32_t)(row / s.rows)) + place);
}
