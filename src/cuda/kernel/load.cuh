/*
 * load.cuh: tiles into shared memory by ordinary threads: for GPUs without the TMA, for strides and alignments that it
 * cannot take, and for sequences that end inside a tensor, whose padding must not be loaded. Same place, same swizzle
 * (wgmma.cuh), so the result has the same bits. Used by forward_sm90's producer warpgroup and by forward_sm80.
 */
#pragma once
#include "core/compiler.h"
#include "cuda/params.h"
#include "mma.cuh"
#include "ptx.cuh"

/* Up to 16 bytes of elements gathered one by one; the missing ones are 0. */
template <int SIZE> __device__ __forceinline__ uint4 gather_16(const char *from, int64_t step, int count)
{
    uint32_t w[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 16 / SIZE; i++) {
        if (i < count) {
            w[i * SIZE / 4] |= SIZE == 4 ? *(const uint32_t *)(from + i * step)
                                         : (uint32_t) * (const uint16_t *)(from + i * step) << (16 * (i % 2));
        }
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* ROWS x D 16-bit elements of one head, the first at `base`; rows from `valid` on and missing columns are 0. */
template <int ROWS, int D, int THREADS>
__device__ __forceinline__ void load_rows(uint32_t to, const attn_tensor &t, const char *base, int valid, bool aligned)
{
    const int columns = (int)t.shape[3];
    const int64_t row_bytes = t.stride[1] * 2, step = t.stride[3] * 2;
#pragma unroll 1
    for (int piece = threadIdx.x; piece < ROWS * (D / 8); piece += THREADS) {
        int r = piece / (D / 8), p = piece % (D / 8);
        uint32_t place = mma::piece_address<ROWS>(to, r, p);
        int count = r < valid ? min(max(columns - 8 * p, 0), 8) : 0;
        const char *from = base + r * row_bytes + 8 * p * step;
        if (aligned) {
            ptx::copy_async_16(place, count > 0 ? from : base, 2 * count);
        } else {
            ptx::store_shared_16(place, gather_16<2>(from, step, count));
        }
    }
}

/* Eight f32 elements -> 16 bytes of each of the three tiles of their parts, `part` bytes apart. */
__device__ __forceinline__ void store_parts(uint32_t place, int part, const uint4 (&x)[2])
{
    uint32_t w[4][3];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        mma::split(__uint_as_float(x[half].x), __uint_as_float(x[half].y), w[2 * half]);
        mma::split(__uint_as_float(x[half].z), __uint_as_float(x[half].w), w[2 * half + 1]);
    }
#pragma unroll
    for (int i = 0; i < 3; i++) {
        ptx::store_shared_16(place + i * part, make_uint4(w[0][i], w[1][i], w[2][i], w[3][i]));
    }
}

/* load_rows of f32 elements, in parts. */
template <int ROWS, int D, int THREADS>
__device__ __forceinline__ void load_split(uint32_t to, const attn_tensor &t, const char *base, int valid, bool aligned)
{
    constexpr int EIGHTS = ROWS * D / 8 / THREADS, AT_ONCE = EIGHTS > 8 ? 4 : EIGHTS; /* loads under way together */
    const int columns = (int)t.shape[3];
    const int64_t row_bytes = t.stride[1] * 4, step = t.stride[3] * 4;
#pragma unroll 1
    for (int first = threadIdx.x; first < ROWS * D / 8; first += AT_ONCE * THREADS) {
        uint4 x[AT_ONCE][2];
#pragma unroll
        for (int n = 0; n < 2 * AT_ONCE; n++) {
            int eight = first + n / 2 * THREADS, r = eight / (D / 8), column = eight % (D / 8) * 8 + n % 2 * 4;
            int count = r < valid ? min(max(columns - column, 0), 4) : 0;
            const char *from = base + r * row_bytes + column * step;
            x[n / 2][n % 2] = make_uint4(0, 0, 0, 0);
            if (aligned && count == 4) {
                x[n / 2][n % 2] = *(const uint4 *)from;
            } else if (count > 0) {
                x[n / 2][n % 2] = gather_16<4>(from, step, count);
            }
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            int eight = first + n * THREADS;
            store_parts(mma::piece_address<ROWS>(to, eight / (D / 8), eight % (D / 8)), ROWS * D * 2, x[n]);
        }
    }
}

/* f32 elements as they are, without waiting: eights in two planes, each thread's where it finds them again. */
template <int ROWS, int D, int THREADS>
__device__ __forceinline__ void load_raw(uint32_t to, const attn_tensor &t, const char *base, int valid, bool aligned)
{
    const int columns = (int)t.shape[3];
    const int64_t row_bytes = t.stride[1] * 4, step = t.stride[3] * 4;
    const int thread = ptx::opaque(threadIdx.x);
#pragma unroll 1
    for (int n = 0; n < ROWS * D / 4 / THREADS; n++) {
        int eight = thread + n / 2 * THREADS, r = eight / (D / 8), column = eight % (D / 8) * 8 + n % 2 * 4;
        uint32_t place = to + n % 2 * (ROWS * D * 2) + eight * 16;
        int count = r < valid ? min(max(columns - column, 0), 4) : 0;
        const char *from = base + r * row_bytes + column * step;
        if (aligned) {
            ptx::copy_async_16(place, count > 0 ? from : base, 4 * count);
        } else {
            ptx::store_shared_16(place, gather_16<4>(from, step, count));
        }
    }
}

/* What the same threads have loaded, in parts: rows first .. of tiles of TILE_ROWS. */
template <int ROWS, int D, int THREADS, int TILE_ROWS>
__device__ __forceinline__ void split_raw(uint32_t to, int first, uint32_t raw)
{
#pragma unroll
    for (int n = 0; n < ROWS * D / 8 / THREADS; n++) {
        int eight = threadIdx.x + n * THREADS, r = first + eight / (D / 8), p = eight % (D / 8);
        uint4 x[2] = {ptx::load_shared_16(raw + eight * 16), ptx::load_shared_16(raw + ROWS * D * 2 + eight * 16)};
        store_parts(mma::piece_address<TILE_ROWS>(to, r, p), TILE_ROWS * D * 2, x);
    }
}
