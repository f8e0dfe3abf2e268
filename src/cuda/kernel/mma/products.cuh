/*
 * products.cuh: products of tiles in shared memory by the tensor cores of sm_80 and later
 * (mma.cuh): a warp's 16 rows times other rows, and numbers in registers times rows, for both
 * passes. PARTS: 3 of f32, in tiles one behind the other, else 1. Sums of f32 begin afresh each 16
 * columns or keys; so do those of 16 bits where a product is as precise.
 */
#pragma once
#include "cuda/kernel/mma/mma.cuh"

namespace mma
{

/* Groups of 8 columns under way at once. */
enum { TILES = 4 };

/* Loads fragments of PARTS operands, `part` bytes apart. */
template <bool TRANSPOSED, int PARTS, int N>
__device__ __forceinline__ void load_fragments(uint32_t (&r)[PARTS][N], int at, uint32_t address,
                                               int part)
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        uint32_t x[4];
        load_4<TRANSPOSED>(x, address + i * part);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            r[i][at + e] = x[e];
        }
    }
}

/* Adds A B[tile], summed afresh, to acc[tile] for TILES column tiles at once. Parts of A and B may
 * differ in number; a pair counts as in add_products. */
template <bool BF16, int TILES, int LEFT, int RIGHT, int N>
__device__ __forceinline__ void add_afresh(float (*acc)[4], const uint32_t (&a)[LEFT][N], int at,
                                           const uint32_t (&b)[RIGHT][2 * TILES])
{
    float sum[TILES][4] = {};
#pragma unroll
    for (int i = 0; i < PRODUCTS; i++) {
        if (left_part(i) < LEFT && right_part(i) < RIGHT) {
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                product<BF16>(sum[t], a[left_part(i)] + at, b[right_part(i)] + 2 * t);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4 * TILES; i++) {
        acc[i / 4][i % 4] += sum[i / 4][i % 4];
    }
}

/* Computes s = A B^T of 16 rows of A, from `row` on, and N rows of B, from `other` on: tiles of
 * ROWS_A and ROWS_B rows of D columns, of which the first `columns` are asked for. AFRESH: each 16
 * of them summed so. */
template <bool BF16, int PARTS, int D, int ROWS_A, int ROWS_B, int N, bool AFRESH = false>
__device__ __forceinline__ void multiply_rows(float (&s)[N / 2], uint32_t a, int row, uint32_t b,
                                              int other, int columns = D)
{
    constexpr int WIDTH = N / 8 < TILES ? N / 8 : TILES;
    const int lane = threadIdx.x % 32;
    float(*acc)[4] = (float(*)[4])s;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        s[i] = 0;
    }
#pragma unroll(PARTS == 1 && !AFRESH ? D / 16 : 1)
    for (int step = 0; 16 * step < columns; step++) {
        uint32_t left[PARTS][4];
        load_fragments<false>(left, 0,
                              piece_address<ROWS_A>(a, row + lane % 16, 2 * step + lane / 16),
                              ROWS_A * D * 2);
#pragma unroll
        for (int t = 0; t < N / 8; t += WIDTH) {
            uint32_t right[PARTS][2 * WIDTH];
#pragma unroll
            for (int i = 0; i < WIDTH; i += 2) {
                const int r = other + 8 * (t + i) + lane % 8 + lane / 16 * 8;
                load_fragments<false>(right, 2 * i,
                                      piece_address<ROWS_B>(b, r, 2 * step + lane / 8 % 2),
                                      ROWS_B * D * 2);
            }
            if constexpr (AFRESH) {
                add_afresh<BF16, WIDTH>(acc + t, left, 0, right);
            } else {
                add_products<BF16, WIDTH>(acc + t, left, 0, right);
            }
        }
    }
}

/* Makes two bf16 parts, which hold all digits, of f16 numbers. */
template <int N>
__device__ __forceinline__ void split_halves(const uint32_t (&x)[N], uint32_t (&parts)[2][N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float2 two = ptx::unpack_half<false>(x[i]);
        uint32_t three[3];
        split(two.x, two.y, three);
        parts[0][i] = three[0], parts[1][i] = three[1];
    }
}

/* Adds P X to acc for TILES groups of 8 columns, from column 8 first on: P of 16 x N in registers,
 * X the rows from `row` on of a tile of ROWS rows of D columns. P may have three parts of bf16
 * beside rows of 16 bits. */
template <bool BF16, int PARTS, int D, int ROWS, int N, int P_PARTS>
__device__ __forceinline__ void add_columns(float (*acc)[4], const uint32_t (&p)[P_PARTS][N / 4],
                                            uint32_t x, int row, int first)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < N / 16; step++) {
        uint32_t right[PARTS][2 * TILES];
#pragma unroll
        for (int i = 0; i < TILES; i += 2) {
            const uint32_t from =
                piece_address<ROWS>(x, row + 16 * step + lane % 16, first + i + lane / 16);
            load_fragments<true>(right, 2 * i, from, ROWS * D * 2);
        }
        if constexpr (P_PARTS == PARTS) {
            add_products<BF16, TILES>(acc, p, 4 * step, right);
        } else if constexpr (BF16) {
            add_afresh<true, TILES>(acc, p, 4 * step, right);
        } else {
            uint32_t parts[2][2 * TILES];
            split_halves(right[0], parts);
            add_afresh<true, TILES>(acc, p, 4 * step, parts);
        }
    }
}

/* Adds P X to the sums of 16 x COLUMNS, the first ones of D, of which the first `columns` are asked
 * for: beside parts the block afresh, then once; of 16 rows add_products does that by itself. */
template <bool BF16, int PARTS, int D, int ROWS, int N, int COLUMNS = D, int P_PARTS>
__device__ __forceinline__ void add_rows(float (&sum)[COLUMNS / 2],
                                         const uint32_t (&p)[P_PARTS][N / 4], uint32_t x, int row,
                                         int columns = COLUMNS)
{
#pragma unroll
    for (int t = 0; t < COLUMNS / 8; t += TILES) {
        if (8 * t >= columns) {
            break;
        }
        float *o = sum + 4 * t;
        if constexpr (P_PARTS == 1 || N == 16) {
            add_columns<BF16, PARTS, D, ROWS, N>((float(*)[4])o, p, x, row, t);
        } else {
            float block[TILES][4] = {};
            add_columns<BF16, PARTS, D, ROWS, N>(block, p, x, row, t);
#pragma unroll
            for (int i = 0; i < 4 * TILES; i++) {
                o[i] += block[i / 4][i % 4];
            }
        }
    }
}

/* Packs numbers as operands, f32 in parts. */
template <bool BF16, int PARTS, int N>
__device__ __forceinline__ void pack(const float (&x)[N], uint32_t (&packed)[PARTS][N / 2])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        if constexpr (PARTS == 1) {
            packed[0][i] = ptx::pack_half<BF16>(x[2 * i], x[2 * i + 1]);
        } else {
            uint32_t parts[PARTS];
            split(x[2 * i], x[2 * i + 1], parts);
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                packed[part][i] = parts[part];
            }
        }
    }
}

} // namespace mma
