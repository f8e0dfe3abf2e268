/*
 * operands_sm90.cuh: products of f32 by bf16 parts, 64 x 64 x 64, for a warpgroup, and P and dS
 * between them. The left operand is in registers, all its parts: one in shared memory takes a
 * product longer, and the warp has the registers while it waits.
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

__device__ __forceinline__ float4 as_floats(const uint4 &x)
{
    return make_float4(__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z),
                       __uint_as_float(x.w));
}

/* Before products of x are issued. */
__device__ __forceinline__ void begin_product(Operand &x)
{
    wgmma::hold(x);
    wgmma::fence();
}

/* Waits for products of x, but not for the LEFT that were issued after them. never: is not ~0. */
template <int LEFT = 0>
__device__ __forceinline__ void end_product(float (&sum)[32], const Operand &x, uint32_t never)
{
    wgmma::wait<LEFT>();
    wgmma::hold(sum);
    wgmma::keep(x[0], never);
    wgmma::keep(x[1], never);
    wgmma::keep(x[2], never);
}

/* Makes P^T of S^T, times 2^RAISE, and its parts. lse: the place of LSE of the rows; key, row: the
 * tile's first ones; masked: the band hides some of it. */
__device__ __forceinline__ void make_probabilities(float (&s)[32], float scale, uint32_t lse,
                                                   const attn_band &band, bool masked, int key,
                                                   int row, Operand &p)
{
    const float log2e = 1.4426950408889634f;
    const int lane = ptx::thread() % 32;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float2 x = ptx::load_shared_8(lse + lane % 4 * 8 + 32 * j);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; i++) {
            const float below = fmaf(s[i], scale, -(i % 2 ? x.y : x.x));
            s[i] = fmaf(below > 0 ? 0 : below, log2e, RAISE);
        }
    }
    if (masked) {
        key += ptx::thread() / 32 % 4 * 16 + lane / 4, row += lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const int k = key + i / 2 % 2 * 8, r = row + i / 4 * 8 + i % 2;
            const bool seen = k >= r + band.from && k < min(r + band.to, band.keys);
            s[i] = seen ? s[i] : -INFINITY;
        }
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        s[2 * i] = ptx::exp2(s[2 * i]), s[2 * i + 1] = ptx::exp2(s[2 * i + 1]);
        uint32_t parts[3];
        mma::split(s[2 * i], s[2 * i + 1], parts);
        p[0][i] = parts[0], p[1][i] = parts[1], p[2][i] = parts[2];
    }
}

/* Makes parts of dS^T = P^T (dP^T - delta). delta: the place of that of the rows. */
__device__ __forceinline__ void make_scores(const float (&p)[32], const float (&dp)[32],
                                            uint32_t delta, Operand &ds)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float2 base = ptx::load_shared_8(delta + ptx::thread() % 4 * 8 + 32 * j);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int at = 4 * j + 2 * i;
            uint32_t parts[3];
            mma::split(p[at] * (dp[at] - base.x), p[at + 1] * (dp[at + 1] - base.y), parts);
            ds[0][2 * j + i] = parts[0], ds[1][2 * j + i] = parts[1], ds[2][2 * j + i] = parts[2];
        }
    }
}

/* Stores parts of dS^T of the warpgroup's keys in shared memory, keys along the rows. */
template <class S> __device__ __forceinline__ void stage_parts(uint32_t to, const Operand &ds)
{
    const int lane = ptx::thread() % 32,
              key = ptx::thread() / 32 % 4 * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int part = 0; part < 3; part++) {
        const uint32_t row = to + part * S::SCORES_PART + key * 128;
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            const uint32_t *const x = ds[part] + 2 * j;
            ptx::store_matrices(row + (((j + lane / 16) ^ lane % 8) * 16), x[0], x[1], x[2], x[3]);
        }
    }
}

/* A sum of a tile alone is added to that of all. */
__device__ __forceinline__ void add_fresh(float (&sum)[32], const float (&fresh)[32])
{
#pragma unroll
    for (int i = 0; i < 32; i++) {
        sum[i] += fresh[i];
    }
}

/* Stores sums of products of P or dS times a factor: to: the thread's first element; rows, columns:
 * that are there from it on. Returns whether an element of such a row is not finite: 0 times it is
 * not 0. */
__device__ __forceinline__ bool store_floats(char *to, int64_t row_bytes, const float (&sum)[32],
                                             float factor, int rows, int columns)
{
    constexpr float DOWN = 1.0f / (1 << RAISE);
    bool bad = false;
#pragma unroll
    for (int half = 0; half < 2; half++, to += 8 * row_bytes) {
        const bool inside = 8 * half < rows;
        float zero = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) { /* no negative 0, as in sums of tiles */
            const float *const s = sum + 4 * i + 2 * half;
            const float x = (0 + s[0]) * DOWN * factor, y = (0 + s[1]) * DOWN * factor;
            zero = fmaf(x, 0, fmaf(y, 0, zero));
            if (inside && 8 * i < columns) {
                *(float2 *)(to + 32 * i) = make_float2(x, y);
            }
        }
        bad |= inside && !(zero == 0);
    }
    return bad;
}
