/*
 * few_end.cuh: the end of forward_few's rows. A row's keys are shared out twice: between the warps
 * of a CTA, whose sums meet in shared memory, and between splits, whose sums a CTA that has all of
 * a row adds up as they end; others leave them in the GPU's memory for a kernel of its own
 * (split_sm90.cuh says what they are). A warp does a row, always in the same order.
 */
#pragma once
#include "cuda/kernel/forward/few_shape.cuh"
#include "cuda/kernel/load/keys.cuh"
#include "cuda/kernel/ptx/entry.cuh"
#include "cuda/kernel/rows/epilogue.cuh"

/* Sums of a row relative to 2^base; lane t has columns 2 t, 2 t + 1, 2 t + 64, .. */
template <int D> struct GatheredRow {
    float o[D / 32], base, l, m;
};

/* Gathers what WARPS warps have left of a row, `step` bytes apart. */
template <int WARPS, int D>
__device__ __forceinline__ void gather(const unsigned char *states, const unsigned char *sums,
                                       int step, GatheredRow<D> &row)
{
    const int lane = threadIdx.x % 32;
    const float4 state = *(const float4 *)(states + lane % WARPS * step);
    float2 x[WARPS][D / 64];
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
#pragma unroll
        for (int j = 0; j < D / 64; j++) {
            x[i][j] = *(const float2 *)(sums + i * step + (2 * lane + 64 * j) * 4);
        }
    }
    const bool seen = state.y != 0;
    row.base = seen ? state.x : -INFINITY, row.m = seen ? state.z : -INFINITY;
#pragma unroll
    for (int lanes = WARPS / 2; lanes > 0; lanes /= 2) {
        row.base = fmaxf(row.base, __shfl_xor_sync(~0u, row.base, lanes));
        row.m = fmaxf(row.m, __shfl_xor_sync(~0u, row.m, lanes));
    }
    const float share = seen ? ptx::exp2(state.x - row.base) : 0;
    row.l = state.y * share;
#pragma unroll
    for (int lanes = WARPS / 2; lanes > 0; lanes /= 2) {
        row.l += __shfl_xor_sync(~0u, row.l, lanes);
    }
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
        row.o[j] = 0;
    }
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        const float times = __shfl_sync(~0u, share, i);
#pragma unroll
        for (int j = 0; j < D / 64; j++) {
            row.o[2 * j] += times != 0 ? x[i][j].x * times : 0;
            row.o[2 * j + 1] += times != 0 ? x[i][j].y * times : 0;
        }
    }
}

/* Splits are added from the right to the left, those of a group of ATTN_CUDA_FEW_GROUP to the sums
 * of it, and groups to the sums of all: a CTA with several splits of its rows does so as they end,
 * the merge with what CTAs have left, to the same bits. */
template <int D> __device__ __forceinline__ void clear_row(GatheredRow<D> &row)
{
    row.base = row.m = -INFINITY, row.l = 0;
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
        row.o[j] = 0;
    }
}

/* The factor of sums relative to 2^from that makes them relative to 2^to. */
__device__ __forceinline__ float rebase(float from, float to)
{
    return from == to ? 1 : ptx::exp2(from - to);
}

/* kept, share: rebase of the row's sums and of the split's. */
__device__ __forceinline__ float add_share(float sum, float kept, float x, float share)
{
    return fmaf(x, share, __fmul_rn(sum, kept));
}

/* Adds l and the columns of a row. */
template <int D>
__device__ __forceinline__ void add_sums(GatheredRow<D> &row, const GatheredRow<D> &x, float kept,
                                         float share)
{
    row.l = add_share(row.l, kept, x.l, share);
#pragma unroll
    for (int j = 0; j < D / 32 && share != 0; j++) {
        row.o[j] = add_share(row.o[j], kept, x.o[j], share);
    }
}

/* Adds a split, or a group of them. */
template <int D>
__device__ __forceinline__ void add_split(GatheredRow<D> &row, const GatheredRow<D> &split)
{
    if (split.l == 0) {
        return;
    }
    const float base = fmaxf(row.base, split.base), kept = rebase(row.base, base),
                share = rebase(split.base, base);
    row.base = base, row.m = fmaxf(row.m, split.m);
    add_sums(row, split, kept, share);
}

/* A whole row by one warp, visible keys only, one after the other; lane t has columns t, t + 32,
 * .. Slow: it is for rows whose data or exponents are out of the ordinary. */
template <int DTYPE, int D>
__device__ __forceinline__ void careful_codes_row(const attn_cuda_codes_params &c,
                                                  const OutputRow &w)
{
    const attn_problem &p = c.forward.problem;
    const CodedKeys keys = {p, c.k_scale, c.k_shift, c.v_scale, c.v_shift};
    const int lane = ptx::opaque(threadIdx.x % 32), kv_head = w.head / (int)p.group;
    const attn_interval see = attn_mask_row(&p, &w.s, w.row);
    const ScoreRow<float> score(p, w.s, w.head, w.row);
    const float scale = c.forward.steps ? LOG2_E : c.forward.scale_log2;
    CarefulSums<D / 32> sums;
#pragma unroll 1
    for (int64_t j = see.lo; j < see.hi; j++) {
        float dot = 0;
#pragma unroll 1
        for (int i = lane; i < p.d; i += 32) {
            const char *q = attn_at(&p.q, w.s.tensor, w.s.q_first + w.row, w.head, i);
            dot += load_real<float>(q, DTYPE) * keys.k(w.s, kv_head, j, i);
        }
        dot = warp_sum(dot);
        if (c.forward.steps) {
            dot = score.visible(j) ? score.step(dot, j) : -INFINITY;
        }
        if (dot == -INFINITY) {
            continue;
        }
        const double e = sums.add(dot, scale);
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            const int column = lane + 32 * i;
            sums.o[i] += column < p.dv ? e * keys.v(w.s, kv_head, j, column) : 0;
        }
    }
    const float2 factors = sums.finish(p, w, scale, lane == 0);
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        const int column = lane + 32 * i;
        if (column < p.dv) {
            store_element<DTYPE>(p.o,
                                 attn_at(&p.o, w.s.tensor, w.s.q_first + w.row, w.head, column),
                                 (float)(sums.o[i] * factors.x * factors.y));
        }
    }
}

/* Writes a row of O and its statistics from the sums over all of its keys; w.seen: the row is in
 * use. */
template <int DTYPE, int D>
__device__ __forceinline__ void finish_gathered(const attn_cuda_codes_params &c, OutputRow &w,
                                                const GatheredRow<D> &row)
{
    const attn_problem &p = c.forward.problem;
    const int lane = threadIdx.x % 32;
    if (w.seen && isnan(row.l)) {
        careful_codes_row<DTYPE, D>(c, w);
        return;
    }
    w.seen = w.seen && row.l != 0;
    const float2 factors =
        finish_row(p, w, row.base, row.l, __fmul_rn(row.m, c.forward.scale_log2) * LN2,
                   RAISED<DTYPE>, lane == 0);
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
        const int column = 64 * (j / 2) + 2 * lane + j % 2;
        if (column < p.dv) {
            store_element<DTYPE>(p.o,
                                 attn_at(&p.o, w.s.tensor, w.s.q_first + w.row, w.head, column),
                                 w.seen ? row.o[j] * factors.x * factors.y : 0);
        }
    }
}

/* The end of a row of which O and an LSE of f32 alone are asked for: addresses that wait in
 * registers. */
struct PlainEnd {
    size_t o, lse; /* of the lane's first column; lse: 0: none */
    int step, columns;
    bool plain, wide; /* wide: O is f32 */

    __device__ __forceinline__ PlainEnd(const attn_problem &p, const OutputRow &w)
    {
        const int lane = threadIdx.x % 32;
        const int64_t size = p.o.dtype == ATTN_F32 ? 4 : 2, apart = p.o.stride[3] * size;
        plain =
            ptx::opaque(w.seen && p.sinks.data == NULL && p.row_max.data == NULL &&
                        (p.lse.data == NULL || p.lse.dtype == ATTN_F32) && apart < 1 << 20) != 0;
        wide = size == 4;
        o = ptx::opaque_global(
            (const char *)attn_at(&p.o, w.s.tensor, w.s.q_first + w.row, w.head, 0) +
            2 * lane * apart);
        step = ptx::opaque((int)apart), columns = ptx::opaque((int)p.dv - 2 * lane);
        lse = p.lse.data == NULL
                  ? 0
                  : ptx::opaque_global(attn_at(&p.lse, w.s.tensor, w.s.q_first + w.row, w.head, 0));
    }
    /* Writes the row as finish_gathered does. Returns false if it is not plain. */
    template <int DTYPE, int D>
    __device__ __forceinline__ bool write(const GatheredRow<D> &row) const
    {
        if (!plain || !(row.l > 0)) {
            return false;
        }
        const float factor = 1 / row.l;
#pragma unroll
        for (int j = 0; j < D / 32; j++) {
            const int column = 64 * (j / 2) + j % 2;
            if (column < columns) {
                char *to = ptx::from_global<char>(o) + column * step;
                if (wide) {
                    *(float *)to = row.o[j] * factor;
                } else {
                    *(uint16_t *)to =
                        (uint16_t)ptx::pack_half<DTYPE == ATTN_BF16>(row.o[j] * factor, 0);
                }
            }
        }
        if (lse != 0 && threadIdx.x % 32 == 0) {
            *ptx::from_global<float>(lse) = natural_lse(row.base, row.l, RAISED<DTYPE>);
        }
        return true;
    }
};

/* Leaves sums of row r of the item's split number `split` for the merge. */
template <class S>
__device__ __forceinline__ void store_split(const attn_cuda_codes_params &c, const FewItem &item,
                                            int split, int r, const GatheredRow<S::D> &row)
{
    const attn_cuda_few &few = c.forward.few;
    const int lane = threadIdx.x % 32;
    const FewRow place = item.row<S>(c, r);
    const int64_t part = item.part + split * S::ROWS + place.part;
    float *to = few.sums + part * S::D + 2 * lane;
    if (!place.used) {
        return;
    }
    if (lane == 0) {
        ((float4 *)few.states)[part] = make_float4(row.base, row.l, row.m, 0);
    }
#pragma unroll
    for (int j = 0; j < S::D / 64; j++) {
        *(float2 *)(to + 64 * j) = make_float2(row.o[2 * j], row.o[2 * j + 1]);
    }
}

/* Gathers row r of what warps have left, each `step` bytes behind the one before it. */
template <class S>
__device__ __forceinline__ void gather_warps(const unsigned char *left, int step, int r,
                                             GatheredRow<S::D> &row)
{
    gather<S::WARPS>(left + S::SUMS + r * 16, left + r * S::APART * 4, step, row);
}

/* The same at the end of an item. */
template <class S>
__device__ __forceinline__ void gather_last(const FewItem &item, const unsigned char *left, int r,
                                            GatheredRow<S::D> &row)
{
    if (item.blocks.count > 0) {
        gather_warps<S>(left, S::LEFT, r, row);
    } else {
        clear_row(row);
    }
}

/* Leaves all rows of a split for the merge. */
template <class S>
__device__ __forceinline__ void store_splits(const attn_cuda_codes_params &c, const FewItem &item,
                                             const unsigned char *left)
{
#pragma unroll(S::SHARED ? 2 : S::ROWS / S::WARPS)
    for (int r = threadIdx.x / 32; r < S::ROWS; r += S::WARPS) {
        if (!S::SHARED && r >= item.rows) {
            return;
        }
        GatheredRow<S::D> row;
        gather_last<S>(item, left, r, row);
        store_split<S>(c, item, 0, r, row);
    }
}

/* Writes row r of O. */
template <class S>
__device__ __forceinline__ void finish_row_of(const attn_cuda_codes_params &c, const FewItem &item,
                                              int r, const GatheredRow<S::D> &row)
{
    const int query = item.query(c, r);
    OutputRow w = {item.sequence, item.head(c, r), query, query < item.sequence.nq_used};
    if (!PlainEnd(c.forward.problem, w).template write<S::DTYPE>(row)) {
        finish_gathered<S::DTYPE>(c, w, row);
    }
}

/* Writes rows of O, or a split's. The latter first, in few instructions: constants for rows of O
 * take their time. */
template <class S>
__device__ __forceinline__ void finish_few(const attn_cuda_codes_params &c, const FewItem &item,
                                           const unsigned char *left)
{
    if (c.forward.schedule.splits > 1) {
        store_splits<S>(c, item, left);
        return;
    }
#pragma unroll 1
    for (int r = threadIdx.x / 32; r < item.rows; r += S::WARPS) {
        GatheredRow<S::D> row;
        gather_last<S>(item, left, r, row);
        finish_row_of<S>(c, item, r, row);
    }
}
