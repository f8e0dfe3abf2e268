/*
 * strips_sm90.cuh: the merge of splits (split_sm90.cuh) of rows of more than 256 columns. Their
 * sums lie in strips, 16 rows of a warp as its threads have them: four of a thread, of two rows,
 * then those of the next thread, then those of the next 8 columns. So all are written and read side
 * by side, and a thread that merges four asks for those of eight splits at a time.
 */
#pragma once
#include "cuda/kernel/forward/split_sm90.cuh"

/* What the warps of a merge know of a strip: the share of each split in each row, -1 where it has
 * written none; factors of a row's sums, and its place in O: -1 where it is not written. */
struct MergedStrip {
    float shares[ATTN_CUDA_MOST_SPLITS][16];
    float2 factors[16];
    int rows[16], heads[16];
};

/* Merges the states of four rows of a strip, from row number `first` on, in one warp: lane i reads
 * the states of splits i and i + 32. part: the strip's first row. writes: LSE and such, and rows to
 * be done again. WIDEST: the largest head dim; COLUMNS: columns of O. */
template <int DTYPE, int WIDEST, int COLUMNS>
__device__ __forceinline__ void merge_states(const attn_cuda_forward_params &a, const Item &item,
                                             const FoldedRows &strip, int64_t part, int first,
                                             bool writes, MergedStrip &to)
{
    constexpr int ROWS = 4, HALVES = ATTN_CUDA_MOST_SPLITS / 32;
    const int lane = threadIdx.x % 32, splits = a.schedule.splits;
    float4 state[ROWS][HALVES];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const bool used = strip.row(item, first + i) < item.sequence.nq_used;
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            const int n = lane + 32 * h;
            const float4 *from = (const float4 *)a.parts.states + part + first + i;
            state[i][h] =
                used && n < splits ? from[(int64_t)n * a.parts.rows] : make_float4(0, 0, 0, 0);
        }
    }
    float base = 0, l = 0, m = 0; /* of row number `lane` */
    uint32_t again = 0;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float top = -INFINITY, score = -INFINITY, sum = 0;
        bool strange = false;
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            const bool seen = state[i][h].y != 0;
            strange |= !(state[i][h].y + state[i][h].w < INFINITY);
            top = fmaxf(top, seen ? state[i][h].x : -INFINITY);
            score = fmaxf(score, seen ? state[i][h].z : -INFINITY);
        }
        again |= (uint32_t)__any_sync(~0u, strange) << i;
        top = warp_max(top), score = warp_max(score);
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            const bool seen = state[i][h].y != 0;
            const float share = ptx::exp2(state[i][h].x - top);
            to.shares[lane + 32 * h][first + i] = seen ? share : -1;
            sum += seen ? state[i][h].y * share : 0;
        }
        sum = warp_sum(sum);
        base = lane == i ? top : base, l = lane == i ? sum : l, m = lane == i ? score : m;
    }
    if (lane < ROWS) {
        const int i = first + lane, row = strip.row(item, i);
        const bool there = row < item.sequence.nq && !(again >> lane & 1);
        OutputRow w = {item.sequence, strip.head(item, i), row, l != 0};
        to.rows[i] = there ? row : -1, to.heads[i] = w.head;
        if (there) {
            const float2 factors = finish_row(
                a.problem, w, base, l, __fmul_rn(m, a.scale_log2) * LN2, RAISED<DTYPE>, writes);
            to.factors[i] = w.seen ? factors : make_float2(0, 0);
        }
    }
    for (; writes && again != 0; again &= again - 1) {
        const int i = first + __ffs(again) - 1;
        OutputRow w = {item.sequence, strip.head(item, i), strip.row(item, i), true};
#pragma unroll 1
        for (w.column = 0; w.column < COLUMNS; w.column += 256) {
            careful_row<DTYPE, WIDEST, false, true>(a, w);
        }
    }
}

/* Merges 64 columns of a strip: each warp 16 of them, a thread four sums at a time. */
template <int DTYPE>
__device__ __forceinline__ void merge_sums(const attn_cuda_forward_params &a, const Item &item,
                                           int64_t part, int slice, const MergedStrip &strip)
{
    const int lane = threadIdx.x % 32, r = lane / 4, splits = a.schedule.splits;
    const int eight = slice * 8 + threadIdx.x / 32 * 2;
    const bool both = 8 * eight + 8 < a.parts.columns;
    const int64_t step = (int64_t)a.parts.rows * a.parts.columns / 4;
    const float4 *from = strip_sums(a, part, eight) + lane;
    float o[2][4] = {};
    if (8 * eight >= a.parts.columns) {
        return;
    }
#pragma unroll 8
    for (int n = 0; n < splits; n++, from += step) {
        const float times[2] = {strip.shares[n][r], strip.shares[n][r + 8]};
        const float4 x[2] = {from[0], both ? from[32] : make_float4(0, 0, 0, 0)};
#pragma unroll
        for (int i = 0; i < 2; i++) { /* what was written counts times 0 as well: it may be NaN */
            o[i][0] += times[0] >= 0 ? x[i].x * times[0] : 0;
            o[i][1] += times[0] >= 0 ? x[i].y * times[0] : 0;
            o[i][2] += times[1] >= 0 ? x[i].z * times[1] : 0;
            o[i][3] += times[1] >= 0 ? x[i].w * times[1] : 0;
        }
    }
#pragma unroll
    for (int at = 0; at < 8; at++) {
        const int row = r + at % 4 / 2 * 8, column = 8 * (eight + at / 4) + 2 * (lane % 4) + at % 2;
        if (strip.rows[row] >= 0 && column < a.problem.dv) {
            const float2 factors = strip.factors[row];
            store_element<DTYPE>(a.problem.o,
                                 attn_at(&a.problem.o, item.sequence.tensor,
                                         item.sequence.q_first + strip.rows[row], strip.heads[row],
                                         column),
                                 factors.y != 0 ? o[at / 4][at % 4] * factors.x * factors.y : 0);
        }
    }
}

/* Merges all rows of O: grid (strips, CTAs that share a strip's columns). */
template <int DTYPE, int WIDEST, int COLUMNS>
__device__ __forceinline__ void merge_strips(const attn_cuda_forward_params &a)
{
    __shared__ MergedStrip merged;
    const attn_cuda_schedule &s = a.schedule;
    const uint32_t strips = (uint32_t)a.parts.rows / 16, place = blockIdx.x % strips,
                   index = blockIdx.x / strips, column = index / (uint32_t)s.blocks,
                   block = index % (uint32_t)s.blocks;
    const FoldedRows strip({(int)place * 16, NULL}, s);
    const int64_t part = first_part(a, column, block) + strip.first;
    Item item = {};
    fill_segment(a, (int)(column / (uint32_t)s.heads) + 1, item.sequence);
    item.head = (int)(column % (uint32_t)s.heads) * s.fold;
    item.first_row = (int64_t)block * s.rows;
    ptx::wait_for_last_launch();
    merge_states<DTYPE, WIDEST, COLUMNS>(a, item, strip, part, (int)threadIdx.x / 32 * 4,
                                         blockIdx.y == 0, merged);
    __syncthreads();
#pragma unroll 1
    for (int slice = blockIdx.y; 64 * slice < a.parts.columns; slice += gridDim.y) {
        merge_sums<DTYPE>(a, item, part, slice, merged);
    }
}
