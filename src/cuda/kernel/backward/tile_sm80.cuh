/*
 * tile_sm80.cuh: P and dS of a warp's part of a block of backward_sm80, in the accumulators of
 * mma.cuh: 16 fixed rows times N streamed ones. keys: fixed are keys, streamed query rows; rows:
 * the other way round.
 *
 * P of f16 is multiplied by 2^15 and dS by 2^k (range_sm90.cuh).
 */
#pragma once
#include "cuda/kernel/backward/shape_sm80.cuh"
#include "cuda/kernel/rows/dropout.cuh"
#include "cuda/kernel/rows/score.cuh"
#include <float.h>

template <class S, bool KEYS> struct MmaTile {
    const MmaTiles<S, KEYS> &tiles;
    const attn_band &band;  /* in shared memory, since registers are few */
    int fixed;              /* first fixed row or key of the warp */
    float scale;            /* of products; 16 bits: to exponents of 2 */
    float lse[2], delta[2]; /* rows: of this thread's two */

    __device__ __forceinline__ MmaTile(const MmaTiles<S, KEYS> &tiles_, const attn_band &band_,
                                       int strip)
        : tiles(tiles_), band(band_), fixed((int)tiles_.item.first + strip),
          scale(S::PARTS == 1 ? tiles_.a.scale_log2 : (float)tiles_.a.grads.problem.scale)
    {
#pragma unroll
        for (int r = 0; r < 2 && !KEYS; r++) {
            const int row = fixed + threadIdx.x % 32 / 4 + 8 * r;
            lse[r] = tiles.load_statistic((int)tiles.item.head, row, false);
            delta[r] = tiles.load_statistic((int)tiles.item.head, row, true);
        }
    }

    /* The least and the largest distance of a key from a row of the N streamed rows from `other`
     * on. */
    template <int N> __device__ __forceinline__ int least(int other) const
    {
        return KEYS ? fixed - (other + N - 1) : other - (fixed + 15);
    }
    template <int N> __device__ __forceinline__ int most(int other) const
    {
        return KEYS ? fixed + 15 - other : other + N - 1 - fixed;
    }

    /* No row sees a key of a block, which warps that share it find alike. */
    __device__ __forceinline__ bool is_hidden(int other) const
    {
        return most<S::STEP>(other) < band.from || least<S::STEP>(other) >= band.to ||
               (KEYS ? fixed : other) >= band.keys || (KEYS ? other : fixed) >= band.rows;
    }
    /* All rows see all keys of the warp's part of a block. */
    __device__ __forceinline__ bool is_open(int other) const
    {
        return least<S::N>(other) >= band.from && most<S::N>(other) < band.to &&
               (KEYS ? fixed + 16 : other + S::N) <= band.keys &&
               (KEYS ? other + S::N : fixed + 16) <= band.rows;
    }

    /* Places of accumulator i: its fixed and its streamed row, and which of them is the key. */
    __device__ __forceinline__ int mine(int i) const
    {
        return fixed + threadIdx.x % 32 / 4 + i / 2 % 2 * 8;
    }
    __device__ __forceinline__ int its(int other, int i) const
    {
        return other + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
    }
    __device__ __forceinline__ bool sees(int other, int i) const
    {
        const int key = KEYS ? mine(i) : its(other, i), row = KEYS ? its(other, i) : mine(i),
                  off = key - row;
        return (off >= band.from) & (off < band.to) & (key < band.keys) & (row < band.rows);
    }

    /* LSE or delta of accumulators i and i + 1, of their block's statistics or the thread's own. */
    __device__ __forceinline__ float2 pair(const float (&own)[2], uint32_t place, int i) const
    {
        if constexpr (KEYS) {
            return ptx::load_shared_8(place + i / 4 * 32 + threadIdx.x % 4 * 8);
        }
        return make_float2(own[i / 2 % 2], own[i / 2 % 2]);
    }

    /* Makes P of the products: p as dV takes it, and w times the bend of score steps (score.cuh),
     * negative where dropout drops it. */
    __device__ __forceinline__ void weigh(float (&w)[S::N / 2], float (&p)[S::N / 2], int head,
                                          int other, uint32_t statistics) const
    {
        if constexpr (S::STEPPED) {
            step_rows(w, p, head, other, statistics);
        } else {
            scale_rows(w, p, other, statistics);
        }
    }
    __device__ __forceinline__ void scale_rows(float (&w)[S::N / 2], float (&p)[S::N / 2],
                                               int other, uint32_t statistics) const
    {
#pragma unroll
        for (int i = 0; i < S::N / 2; i++) {
            const float2 sum = pair(lse, statistics, i / 2 * 2);
            w[i] = weight(w[i], i % 2 == 0 ? sum.x : sum.y);
        }
        if (!is_open(other)) {
#pragma unroll
            for (int i = 0; i < S::N / 2; i++) {
                w[i] = ptx::select(sees(other, i), w[i], 0);
            }
        }
#pragma unroll
        for (int i = 0; i < S::N / 2; i++) {
            p[i] = w[i];
        }
    }
    __device__ __forceinline__ float weight(float product, float log_sum) const
    {
        return S::PARTS == 1 ? ptx::exp2(fmaf(product, scale, -log_sum))
                             : exp(fminf(fmaf(product, scale, -log_sum), 0));
    }

    /* The same with score steps and dropout, row by row. */
    __device__ __forceinline__ void step_rows(float (&w)[S::N / 2], float (&p)[S::N / 2], int head,
                                              int other, uint32_t statistics) const
    {
        constexpr int ROWS = KEYS ? S::N / 4 : 2, EACH = KEYS ? 2 : S::N / 4;
        const attn_problem &problem = tiles.a.grads.problem;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int first = KEYS ? r / 2 * 4 + r % 2 : 2 * r,
                      row = KEYS ? its(other, first) : mine(first);
            const ScoreRow<float> score(problem, tiles.item.sequence, head, row);
            const DropoutRow drop(problem, tiles.item.sequence, head, row);
            const float2 sums = pair(lse, statistics, first / 2 * 2);
#pragma unroll
            for (int n = 0; n < EACH; n++) {
                const int i = KEYS ? first + 2 * n : n / 2 * 4 + first + n % 2,
                          key = KEYS ? mine(i) : its(other, i);
                const float product = w[i];
                const bool seen = sees(ptx::opaque(other), i) && score.visible(key);
                const float x = seen ? score.step(product, key) : -INFINITY,
                            log_sum = i % 2 == 0 ? sums.x : sums.y,
                            p_x = x == -INFINITY ? 0 : raised() * exp(fminf(x - log_sum, 0));
                const bool kept = drop.factor<float>(key) != 0;
                p[i] = kept ? p_x * tiles.a.kept : 0;
                w[i] = (kept ? p_x : -p_x) * score_bend(problem, product);
            }
        }
    }
    __device__ __forceinline__ float raised() const
    {
        return power_of_2(S::BF16 ? 0 : LIFT);
    }

    /* Makes dS of dP and w. Where P is 0 dP may be anything. */
    __device__ __forceinline__ void differentiate(float (&x)[S::N / 2], const float (&w)[S::N / 2],
                                                  uint32_t statistics) const
    {
#pragma unroll
        for (int i = 0; i < S::N / 2; i++) {
            const float2 off = pair(delta, statistics + 4 * S::STEP, i / 2 * 2);
            const float p = S::STEPPED ? fabsf(w[i]) : w[i],
                        factor = tiles.unit * (!S::STEPPED ? 1
                                               : w[i] < 0  ? 0
                                                           : tiles.a.kept);
            x[i] = p < FLT_MIN ? 0 : p * fmaf(x[i], factor, -(i % 2 == 0 ? off.x : off.y));
        }
    }
};
