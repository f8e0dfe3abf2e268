/*
 * stores_sm90.cuh: rows of gradients, from accumulators to global memory.
 */
#pragma once
#include "cuda/backward/params.h"
#include "cuda/kernel/ptx/ptx.cuh"

/* Lane l of each four gets word l of all of them, in their order. */
__device__ __forceinline__ void transpose_words(uint32_t (&x)[4])
{
    const bool odd = ptx::thread() % 2, high = ptx::thread() / 2 % 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t got = __shfl_xor_sync(~0u, odd ? x[i] : x[i + 1], 1);
        x[i] = odd ? got : x[i], x[i + 1] = odd ? x[i + 1] : got;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t got = __shfl_xor_sync(~0u, high ? x[i] : x[i + 2], 2);
        x[i] = high ? got : x[i], x[i + 2] = high ? x[i + 2] : got;
    }
}

/* Eight columns of a row of 16-bit elements, which is aligned (backward/plan.c). */
__device__ __forceinline__ void store_eight(char *row, int column, int columns,
                                            const uint32_t (&x)[4])
{
    uint32_t *const to = (uint32_t *)(row + (int64_t)column * 2);
    if (column + 8 <= columns) {
        *(uint4 *)to = make_uint4(x[0], x[1], x[2], x[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (column + 2 * i < columns) {
            to[i] = x[i];
        }
    }
}

/* Stores two neighbouring columns of a row of a gradient. */
__device__ __forceinline__ void store_pair(const attn_tensor &t, char *row, int column, int columns,
                                           float x, float y)
{
    if (column >= columns) {
        return;
    }
    if (t.dtype == ATTN_F32) {
        *(float2 *)(row + (int64_t)column * 4) = make_float2(x, y);
    } else {
        *(uint32_t *)(row + (int64_t)column * 2) =
            t.dtype == ATTN_BF16 ? ptx::pack_half<true>(x, y) : ptx::pack_half<false>(x, y);
    }
}

__device__ __forceinline__ bool is_bad(float x, float y)
{
    return !(fabsf(x) < INFINITY) || !(fabsf(y) < INFINITY);
}

/* 32 columns of a row of a gradient, of whose eights this lane has two each, as accumulators lie.
 * All lanes of the warp; inside: the row is there. Returns whether an element is not finite. */
__device__ __forceinline__ bool store_row(const attn_tensor &t, char *row, int column,
                                          const float (&x)[4][2], bool inside)
{
    const int lane = ptx::thread() % 4, columns = (int)t.shape[3];
    bool bad = false;
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        bad |= inside && is_bad(x[i][0], x[i][1]);
        words[i] = t.dtype == ATTN_BF16 ? ptx::pack_half<true>(x[i][0], x[i][1])
                                        : ptx::pack_half<false>(x[i][0], x[i][1]);
        if (inside && t.dtype == ATTN_F32) {
            store_pair(t, row, column + 8 * i + 2 * lane, columns, x[i][0], x[i][1]);
        }
    }
    transpose_words(words);
    if (inside && t.dtype != ATTN_F32) {
        store_eight(row, column + 8 * lane, columns, words);
    }
    return bad;
}

/* Stores rows of sums times a factor as 16-bit elements, all columns of which are there. to: of the
 * lane's first row the first of eight columns; step: bytes from row to row; left: rows that are
 * there from it on. Returns true if an element is not finite. All lanes of the warp. */
template <bool BF16, int N>
__device__ __forceinline__ bool store_halves(char *to, int64_t step, const float (&sum)[N],
                                             float factor, int left)
{
    bool bad = false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float zero = 0; /* times a number that is not finite it is not 0 */
#pragma unroll
        for (int j = 0; j < N / 4; j += 4) {
            uint32_t words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float x = sum[4 * (j + i) + 2 * half] * factor,
                            y = sum[4 * (j + i) + 2 * half + 1] * factor;
                zero = fmaf(x, 0, fmaf(y, 0, zero));
                words[i] = ptx::pack_half<BF16>(x, y);
            }
            transpose_words(words);
            if (8 * half < left) {
                *(uint4 *)(to + 8 * half * step + j * 16) =
                    make_uint4(words[0], words[1], words[2], words[3]);
            }
        }
        bad |= 8 * half < left && !(zero == 0);
    }
    return bad;
}

/* Stores a warp's 16 rows of 64 sums, from number FROM of a lane's on, times a factor in shared
 * memory, as 16-bit elements, where a map of boxes of 16 rows takes them (tma::store). to: the
 * lane's place (box_place). Returns 1 if an element of the lane's first row is not finite, and 2 if
 * one of the row 8 below is not. All lanes. */
template <bool BF16, int FROM = 0, int N>
__device__ __forceinline__ int stage_halves(uint32_t to, const float (&sum)[N], float factor)
{
    float zero[2] = {0, 0}; /* of rows 8 apart */
#pragma unroll
    for (int i = 0; i < 32; i += 8) {
        uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float x = sum[FROM + i + 2 * j] * factor, y = sum[FROM + i + 2 * j + 1] * factor;
            zero[j % 2] = fmaf(x, 0, fmaf(y, 0, zero[j % 2]));
            words[j] = ptx::pack_half<BF16>(x, y);
        }
        ptx::store_matrices(to ^ i / 8 * 32, words[0], words[1], words[2], words[3]);
    }
    return (zero[0] == 0 ? 0 : 1) | (zero[1] == 0 ? 0 : 2);
}

/* Stores 64 rows of sums times a factor in a gradient, columns from `column` on; `left` rows are
 * there. BF16: the inputs' type. Returns true if an element is not finite. */
template <bool BF16, int N>
__device__ __forceinline__ bool store_sums(const attn_tensor &t, const float (&sum)[N],
                                           float factor, int batch, int64_t first, int head,
                                           int left, int column = 0)
{
    bool bad = false;
    const int first_row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    if (t.data != NULL && t.dtype == (BF16 ? ATTN_BF16 : ATTN_F16) &&
        column + 2 * N <= t.shape[3]) {
        char *const to = attn_at(&t, batch, first + first_row, head, column + threadIdx.x % 4 * 8);
        return store_halves<BF16>(to, t.stride[1] * 2, sum, factor, left - first_row);
    }
#pragma unroll
    for (int half = 0; half < 2 && t.data != NULL; half++) {
        const int r = ptx::opaque(first_row) + 8 * half; /* or it spills */
        char *const row = attn_at(&t, batch, first + r, head, 0);
#pragma unroll
        for (int j = 0; j < N / 4; j += 4) {
            float x[4][2];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                x[i / 2][i % 2] = sum[4 * (j + i / 2) + 2 * half + i % 2] * factor;
            }
            bad |= store_row(t, row, column + 8 * j, x, r < left);
        }
    }
    return bad;
}
