/*
 * mma.cuh: the tensor cores of sm_80 and later, by warp: D[16][8] += A[16][16] B[16][8] of 16-bit
 * operands with f32 accumulators, and f32 operands as three bf16 parts. Not here: wgmma of sm_90a
 * (wgmma.cuh).
 *
 * Layouts of lane l: accumulators as in wgmma.cuh (rows l / 4 and l / 4 + 8, columns 2 (l % 4) +
 * {0, 1}); operands in shared memory as there (chunks of 64 columns, swizzled), read 8 x 8 elements
 * at a time by ldmatrix.
 */
#pragma once
#include "cuda/kernel/ptx/tensor.cuh"

namespace mma
{

/* The address of 16-byte piece `piece` of row `row` in a tile of ROWS rows. */
template <int ROWS>
__device__ __forceinline__ uint32_t piece_address(uint32_t tile, int row, int piece)
{
    return tile + piece / 8 * (ROWS * 128) + row * 128 + ((piece % 8 ^ row % 8) << 4);
}

/*
 * f32 = three parts in bf16, largest first, each the rounded rest: 3 x 8 bits hold all 24. Of the
 * nine products of two split factors the six largest count; the others are under 2^-25 of the exact
 * one. A value that is not finite, or rounds to infinity, becomes NaN. The tensor cores cut sums
 * off instead of rounding them, so chains of products are short, begin with the small ones, and are
 * added up with rounded additions.
 */
__device__ __forceinline__ void split(float x, float y, uint32_t (&parts)[3])
{
#pragma unroll
    for (int i = 0; i < 3; i++) {
        parts[i] = ptx::pack_half<true>(x, y);
        x -= __uint_as_float(parts[i] << 16);
        y -= __uint_as_float(parts[i] & 0xffff0000);
    }
}

/* The i-th product of parts, small ones first. Operands of one part have the last product alone. */
enum { PRODUCTS = 6 };
template <int PARTS> constexpr int FIRST_PRODUCT = PARTS == 1 ? PRODUCTS - 1 : 0;

__device__ __forceinline__ constexpr int left_part(int i)
{
    return i < 3 ? i : i < 5 ? i - 3 : 0;
}

__device__ __forceinline__ constexpr int right_part(int i)
{
    return i < 3 ? 2 - i : i < 5 ? 4 - i : 0;
}

/* Adds A B[tile] to acc[tile] for TILES column tiles at once, so that their chains overlap. A
 * begins at a[..][at]. */
template <bool BF16, int TILES, int PARTS, int N>
__device__ __forceinline__ void add_products(float (*acc)[4], const uint32_t (&a)[PARTS][N], int at,
                                             const uint32_t (&b)[PARTS][2 * TILES])
{
    float sum[TILES][4] = {};
#pragma unroll
    for (int i = FIRST_PRODUCT<PARTS>; i < PRODUCTS; i++) {
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            product<BF16>(PARTS == 1 ? acc[t] : sum[t], a[left_part(i)] + at,
                          b[right_part(i)] + 2 * t);
        }
    }
#pragma unroll
    for (int i = 0; i < 4 * TILES * (PARTS > 1); i++) {
        acc[i / 4][i % 4] += sum[i / 4][i % 4];
    }
}

} // namespace mma
