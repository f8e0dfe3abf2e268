/*
 * tile_sm80.cuh: P and dS of a warp's tile of backward_sm80, in the accumulators of mma.cuh: 16 fixed
 * rows times N streamed ones. keys: fixed are keys, streamed query rows; rows: the other way round.
 */
#pragma once
#include "cuda/kernel/backward/shape_sm80.cuh"
#include "cuda/kernel/rows/score.cuh"
#include <float.h>

template <class S, bool KEYS> struct MmaTile {
    attn_band band;
    int fixed;                  /* first fixed row or key of the warp */
    float scale;                /* of products; 16 bits: to exponents of 2 */
    float lse[2], delta[2];     /* rows: of this thread's two */

    __device__ __forceinline__ MmaTile(const MmaTiles<S, KEYS> &tiles, int strip)
        : band(attn_mask_band(&tiles.a.grads.problem, &tiles.item.sequence)),
          fixed((int)tiles.item.first + strip),
          scale(S::PARTS == 1 ? tiles.a.scale_log2 : (float)tiles.a.grads.problem.scale)
    {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int r = 0; r < 2 && !KEYS; r++) {
            const int row = fixed + lane / 4 + 8 * r;
            lse[r] = tiles.load_statistic((int)tiles.item.head, row, false);
            delta[r] = tiles.load_statistic((int)tiles.item.head, row, true);
        }
    }

    /* The first and last difference of a key and a row of the tile whose streamed rows begin at
     * `other`, and the last key and row. */
    __device__ __forceinline__ int least(int other) const
    {
        return KEYS ? fixed - (other + S::N - 1) : other - (fixed + 15);
    }
    __device__ __forceinline__ int most(int other) const
    {
        return KEYS ? fixed + 15 - other : other + S::N - 1 - fixed;
    }

    /* No row sees a key. */
    __device__ __forceinline__ bool is_hidden(int other) const
    {
        return most(other) < band.from || least(other) >= band.to ||
               (KEYS ? fixed : other) >= band.keys || (KEYS ? other : fixed) >= band.rows;
    }
    /* All rows see all keys. */
    __device__ __forceinline__ bool is_open(int other) const
    {
        return least(other) >= band.from && most(other) < band.to &&
               (KEYS ? fixed + 16 : other + S::N) <= band.keys &&
               (KEYS ? other + S::N : fixed + 16) <= band.rows;
    }

    /* Whether the row of accumulator i sees its key. */
    __device__ __forceinline__ bool sees(int other, int i) const
    {
        const int lane = threadIdx.x % 32, mine = fixed + lane / 4 + i / 2 % 2 * 8,
                  its = other + i / 4 * 8 + lane % 4 * 2 + i % 2, key = KEYS ? mine : its,
                  row = KEYS ? its : mine, off = key - row;
        return off >= band.from && off < band.to && key < band.keys && row < band.rows;
    }

    /* LSE or delta of accumulators i and i + 1, at `place` of their block's statistics. */
    __device__ __forceinline__ float2 pair(const float (&own)[2], uint32_t place, int i) const
    {
        if constexpr (KEYS) {
            return ptx::load_shared_8(place + i / 4 * 32 + threadIdx.x % 4 * 8);
        }
        return make_float2(own[i / 2 % 2], own[i / 2 % 2]);
    }

    __device__ __forceinline__ float weight(float product, float log_sum) const
    {
        return S::PARTS == 1 ? ptx::exp2(fmaf(product, scale, -log_sum))
                             : exp(fminf(fmaf(product, scale, -log_sum), 0));
    }

    /* Makes P of products. */
    __device__ __forceinline__ void weigh(float (&x)[S::N / 2], int other, uint32_t statistics) const
    {
        const bool open = is_open(other);
#pragma unroll
        for (int i = 0; i < S::N / 2; i += 2) {
            const float2 sum = pair(lse, statistics, i);
            x[i] = weight(x[i], sum.x), x[i + 1] = weight(x[i + 1], sum.y);
        }
        if (!open) {
#pragma unroll
            for (int i = 0; i < S::N / 2; i++) {
                x[i] = sees(other, i) ? x[i] : 0;
            }
        }
    }

    /* Makes dS of dP and P. Where P is 0 dP may be anything. */
    __device__ __forceinline__ void differentiate(float (&x)[S::N / 2], const float (&p)[S::N / 2],
                                                  uint32_t statistics) const
    {
#pragma unroll
        for (int i = 0; i < S::N / 2; i += 2) {
            const float2 off = pair(delta, statistics + 4 * S::STEP, i);
            x[i] = p[i] < FLT_MIN ? 0 : p[i] * (x[i] - off.x);
            x[i + 1] = p[i + 1] < FLT_MIN ? 0 : p[i + 1] * (x[i + 1] - off.y);
        }
    }
};
