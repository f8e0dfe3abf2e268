/*
 * mma.cuh: the tensor cores of sm_80 and later, by warp: D[16][8] += A[16][16] B[16][8] of 16-bit operands with f32
 * accumulators, and f32 operands as three bf16 parts. Not here: wgmma of sm_90a (wgmma.cuh).
 *
 * Layouts of lane l: accumulators as in wgmma.cuh (rows l / 4 and l / 4 + 8, columns 2 (l % 4) + {0, 1}); operands in
 * shared memory as there (chunks of 64 columns, swizzled), read 8 x 8 elements at a time by ldmatrix.
 */
#pragma once
#include "ptx.cuh"

namespace mma
{

/* Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8. */
template <bool TRANSPOSED> __device__ __forceinline__ void load_4(uint32_t (&r)[4], uint32_t address)
{
    if (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address)
                     : "memory");
    }
}

/* Address of row `row`, 16-byte piece `piece` of a tile of ROWS rows. */
template <int ROWS> __device__ __forceinline__ uint32_t piece_address(uint32_t tile, int row, int piece)
{
    return tile + piece / 8 * (ROWS * 128) + row * 128 + ((piece % 8 ^ row % 8) << 4);
}

template <bool BF16> __device__ __forceinline__ void product(float (&d)[4], const uint32_t (&a)[4], const uint32_t *b)
{
    if (BF16) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
}

/*
 * f32 = three parts in bf16, largest first, each the rounded rest: 3 x 8 bits hold all 24. Of the nine products of two
 * split factors the six largest count; the rest is under 2^-25 of the exact one. What is not finite, or rounds to
 * infinity, becomes NaN. The tensor cores cut off sums instead of rounding them, so a chain of products is short and is
 * added with a rounded addition: add_products.
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

/* acc[tile] += A B[tile] for TILES column tiles at once, so that their chains overlap. PARTS = 1: 16-bit operands. */
template <bool BF16, int PARTS, int TILES>
__device__ __forceinline__ void add_products(float (*acc)[4], const uint32_t (&a)[PARTS][4],
                                             const uint32_t (&b)[PARTS][2 * TILES])
{
    if constexpr (PARTS == 1) {
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            product<BF16>(acc[t], a[0], b[0] + 2 * t);
        }
    } else {
        constexpr int ORDER[6][2] = {{0, 2}, {1, 1}, {2, 0}, {0, 1}, {1, 0}, {0, 0}}; /* small ones first */
        float sum[TILES][4] = {};
#pragma unroll
        for (int i = 0; i < 6; i++) {
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                product<true>(sum[t], a[ORDER[i][0]], b[ORDER[i][1]] + 2 * t);
            }
        }
#pragma unroll
        for (int t = 0; t < TILES; t++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                acc[t][e] += sum[t][e];
            }
        }
    }
}

} // namespace mma
