/*
 * operands_sm90.cuh: products of f32 by bf16 parts, 64 x 64 x 64, for a warpgroup: the left operand
 * in registers, all its parts, since one in shared memory takes a product longer and the warp has
 * the registers while it waits.
 */
#pragma once
#include "cuda/kernel/backward/parts_sm90.cuh"

/* Parts of a left operand of 64 x 64: four words for each k-step. */
typedef uint32_t Operand[3][16];

/* Loads parts of the warpgroup's rows of a tile of FIXED rows. */
template <class S>
__device__ __forceinline__ void load_operand(Operand &x, uint32_t tile, int group)
{
    const int lane = ptx::thread() % 32, row = 64 * group + ptx::thread() / 32 % 4 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < 12; i++) {
        const int part = i / 4, step = i % 4;
        mma::load_4<false>(
            *(uint32_t(*)[4]) & x[part][4 * step],
            mma::piece_address<S::FIXED>(tile + part * S::FIXED_PART, row, 2 * step + lane / 16));
    }
}

/* Loads parts of dS of 64 rows and the warpgroup's keys, of whose dS^T they are. */
template <class S>
__device__ __forceinline__ void load_scores(Operand &x, uint32_t scores, int group)
{
    const int lane = ptx::thread() % 32, key = 64 * group + lane / 16 * 8 + lane % 8,
              piece = ptx::thread() / 32 % 4 * 2 + lane / 8 % 2;
#pragma unroll
    for (int i = 0; i < 12; i++) {
        const int part = i / 4, step = i % 4;
        mma::load_4<true>(
            *(uint32_t(*)[4]) & x[part][4 * step],
            mma::piece_address<S::FIXED>(scores + part * S::SCORES_PART, key + 16 * step, piece));
    }
}

/* Issues sum = X Y, or X Y^T without ROWS_ALONG_K, of parts, small products first. y: the place of
 * Y, 64 rows, in shared memory; Y_PART: bytes from part to part. */
template <int ROWS_ALONG_K, int Y_PART>
__device__ __forceinline__ void issue_split(float (&sum)[32], const Operand &x, uint32_t y)
{
    const uint64_t right = wgmma::descriptor(ptx::uniform(y), 0);
#pragma unroll
    for (int i = 0; i < mma::PRODUCTS; i++) {
#pragma unroll
        for (int step = 0; step < 4; step++) {
            wgmma::Product<true, 64>::template rs<ROWS_ALONG_K>(
                sum, x[mma::left_part(i)] + 4 * step,
                right + mma::right_part(i) * (Y_PART / 16) + step * (ROWS_ALONG_K ? 128 : 2),
                i > 0 || step > 0);
        }
    }
    wgmma::commit();
}

/* A sum of a tile alone is added to that of all. */
__device__ __forceinline__ void add_fresh(float (&sum)[32], const float (&fresh)[32])
{
#pragma unroll
    for (int i = 0; i < 32; i++) {
        sum[i] += fresh[i];
    }
}
