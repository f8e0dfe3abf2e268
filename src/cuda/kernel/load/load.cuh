/*
 * load.cuh: tiles into shared memory by ordinary threads: for GPUs without the TMA, for strides and
 * alignments that it cannot take, for sequences that end inside a tensor, whose padding must not be
 * loaded, and for f32, which is split into parts on its way. Same place, same swizzle (wgmma.cuh),
 * so the result has the same bits. Used by all warpgroups of forward_sm90 and by forward_sm80.
 */
#pragma once
#include "core/compiler.h"
#include "core/kv.h"
#include "cuda/params.h"
#include "cuda/kernel/load/clean.cuh"
#include "cuda/kernel/mma/mma.cuh"
#include "cuda/kernel/ptx/ptx.cuh"

/* Gathers up to 16 bytes of elements one by one; missing ones are 0. */
template <int SIZE>
__device__ __forceinline__ uint4 gather_16(const char *from, int64_t step, int count)
{
    uint32_t w[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 16 / SIZE; i++) {
        if (i < count) {
            w[i * SIZE / 4] |= SIZE == 4 ? *(const uint32_t *)(from + i * step)
                                         : (uint32_t) * (const uint16_t *)(from + i * step)
                                               << (16 * (i % 2));
        }
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* Loads ROWS x D 16-bit elements of one head, the first at `base`. Rows from `valid` on and missing
 * columns are 0. */
template <int ROWS, int D, int THREADS>
__device__ __forceinline__ void load_rows(uint32_t to, const attn_tensor &t, const char *base,
                                          int valid, bool aligned)
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

/* Cleans (clean.cuh) elements that the same threads loaded by load_rows. Returns true if the
 * thread's own part was not clean. */
template <bool BF16, int ROWS, int D, int THREADS>
__device__ __forceinline__ bool clean_rows(uint32_t tile)
{
    bool found = false;
#pragma unroll 1
    for (int piece = threadIdx.x; piece < ROWS * (D / 8); piece += THREADS) {
        found |= clean_16<BF16>(mma::piece_address<ROWS>(tile, piece / (D / 8), piece % (D / 8)));
    }
    return found;
}

/* Stores four f32 elements as 8 bytes in each of the three tiles of their parts, `part` bytes
 * apart. */
__device__ __forceinline__ void store_parts(uint32_t place, int part, const uint4 &x)
{
    uint32_t low[3], high[3];
    mma::split(__uint_as_float(x.x), __uint_as_float(x.y), low);
    mma::split(__uint_as_float(x.z), __uint_as_float(x.w), high);
#pragma unroll
    for (int i = 0; i < 3; i++) {
        ptx::store_shared_8(place + i * part, low[i], high[i]);
    }
}

/* Places of f32 elements that a thread reads four at a time: threads have the fours of a row in
 * turn. */
template <int D, int THREADS> struct Fours {
    static constexpr int PER_ROW = D / 4,
                         STEP = THREADS / PER_ROW; /* rows between two fours of the thread */
    int row, column;                               /* place of the thread's first four */

    __device__ __forceinline__ Fours(int thread)
        : row(thread / PER_ROW), column(thread % PER_ROW * 4)
    {
    }
    /* The place of the n-th four in a tile of TILE_ROWS of parts. */
    template <int TILE_ROWS> __device__ __forceinline__ uint32_t place(uint32_t tile, int n) const
    {
        return mma::piece_address<TILE_ROWS>(tile, row + n * STEP, column / 8) + column % 8 * 2;
    }
};

/* A thread's part, in registers, of ROWS x D f32 elements of one head on their way to shared
 * memory. fetch loads as load_rows does, without waiting; put splits elements into parts, in a tile
 * of TILE_ROWS. */
template <int ROWS, int D, int THREADS> struct Fetched {
    static constexpr int FOURS = ROWS * D / 4 / THREADS;
    uint4 x[FOURS];

    __device__ __forceinline__ void fetch(const attn_tensor &t, const char *base, int valid,
                                          bool aligned)
    {
        const Fours<D, THREADS> fours(threadIdx.x % THREADS);
        const int count = min(max((int)t.shape[3] - fours.column, 0), 4);
        const int64_t row_bytes = t.stride[1] * 4, step = t.stride[3] * 4;
        const char *from = base + fours.row * row_bytes + fours.column * step;
        if (__builtin_expect(aligned && count % 4 == 0,
                             true)) { /* one stretch of code, since cold code is slow to fetch */
            fetch_fours(fours, from, row_bytes, valid, count == 4);
        } else {
#pragma unroll
            for (int n = 0; n < FOURS; n++, from += fours.STEP * row_bytes) {
                x[n] = gather_16<4>(from, step, fours.row + n * fours.STEP < valid ? count : 0);
            }
        }
    }
    /* Loads from rows that are aligned and whose columns come in fours, if the place is inside. */
    __device__ __forceinline__ void fetch_fours(const Fours<D, THREADS> &fours, const char *from,
                                                int64_t row_bytes, int valid, bool inside)
    {
#pragma unroll
        for (int n = 0; n < FOURS; n++, from += fours.STEP * row_bytes) {
            x[n] = make_uint4(0, 0, 0, 0);
            if (inside && fours.row + n * fours.STEP < valid) {
                x[n] = *(const uint4 *)from;
            }
        }
    }
    /* clean.cuh */
    __device__ __forceinline__ bool clean()
    {
        bool found = false;
#pragma unroll
        for (int n = 0; n < FOURS; n++) {
            found |= clean_floats(x[n]);
        }
        return found;
    }
    template <int TILE_ROWS> __device__ __forceinline__ void put(uint32_t to) const
    {
        const Fours<D, THREADS> fours(threadIdx.x % THREADS);
#pragma unroll
        for (int n = 0; n < FOURS; n++) {
            store_parts(fours.template place<TILE_ROWS>(to, n), TILE_ROWS * D * 2, x[n]);
        }
    }
};

/* Copies f32 elements as they are, row by row, without waiting. Each thread reads its own again
 * later. */
template <int ROWS, int D, int THREADS>
__device__ __forceinline__ void load_raw(uint32_t to, const attn_tensor &t, const char *base,
                                         int valid, bool aligned)
{
    constexpr int FOURS = ROWS * D / 4 / THREADS;
    const Fours<D, THREADS> fours(ptx::opaque(threadIdx.x));
    const int count = min(max((int)t.shape[3] - fours.column, 0), 4);
    const int64_t row_bytes = t.stride[1] * 4, step = t.stride[3] * 4;
    const char *from = base + fours.row * row_bytes + fours.column * step;
    uint32_t place = to + threadIdx.x * 16;
    if (aligned) {
#pragma unroll
        for (int n = 0; n < FOURS; n++, from += fours.STEP * row_bytes) {
            const bool there = count > 0 && fours.row + n * fours.STEP < valid;
            ptx::copy_async_16(place + n * THREADS * 16, there ? from : base,
                               there ? 4 * count : 0);
        }
    } else {
#pragma unroll 1
        for (int n = 0; n < FOURS; n++, from += fours.STEP * row_bytes, place += THREADS * 16) {
            ptx::store_shared_16(
                place, gather_16<4>(from, step, fours.row + n * fours.STEP < valid ? count : 0));
        }
    }
}

/* Cleans elements that the same threads loaded by load_raw. */
template <int ROWS, int D, int THREADS> __device__ __forceinline__ bool clean_raw(uint32_t raw)
{
    bool found = false;
#pragma unroll 1
    for (int n = 0; n < ROWS * D / 4 / THREADS; n++) {
        const uint32_t at = raw + (threadIdx.x + n * THREADS) * 16;
        uint4 x = ptx::load_shared_16(at);
        if (clean_floats(x)) {
            ptx::store_shared_16(at, x);
            found = true;
        }
    }
    return found;
}

/* Splits elements that the same threads loaded into parts, from row `first` on of tiles of
 * TILE_ROWS. UNROLL: fours that registers have room for. */
template <int ROWS, int D, int THREADS, int TILE_ROWS, int UNROLL = (ROWS * D) / 4 / THREADS>
__device__ __forceinline__ void split_raw(uint32_t to, int first, uint32_t raw)
{
    const Fours<D, THREADS> fours(threadIdx.x);
#pragma unroll(UNROLL)
    for (int n = 0; n < ROWS * D / 4 / THREADS; n++) {
        store_parts(fours.template place<TILE_ROWS>(to + first * 128, n), TILE_ROWS * D * 2,
                    ptx::load_shared_16(raw + (threadIdx.x + n * THREADS) * 16));
    }
}
