/*
 * philox.cuh: a call of Philox (core/dropout.h) in parts: what of its first three rounds follows
 * from the keys of its positions alone, what from their rows alone, and the rest. Of rounds 1 to 3
 * that leaves one product of six to each call.
 *
 *     state          0           1           2              3
 *     at first       keys        rows        stream         stream
 *     after round 1  rows        stream      keys           keys
 *     after round 2  keys        keys        keys, rows     rows
 *     after round 3  all         all         keys, rows     keys
 */
#pragma once
#include "core/dropout.h"
#include "cuda/params.h"

/* The state behind round 3 of the call of counter `at`, without what rows add to it; in word 1,
 * which is theirs alone, word 2 behind round 2. */
__device__ __forceinline__ uint4 philox_of_keys(const attn_cuda_dropout &dropout, uint4 at)
{
    uint32_t x[4] = {at.x, 0, at.z, at.w};
    attn_philox_round(x, dropout.keys[0][0], dropout.keys[0][1]);
    x[0] = 0; /* of the rows */
    attn_philox_round(x, dropout.keys[1][0], dropout.keys[1][1]);
    const uint32_t both = x[2];
    x[2] = 0;
    attn_philox_round(x, dropout.keys[2][0], dropout.keys[2][1]);
    return make_uint4(x[0], both, x[2], x[3]);
}

/* What rows add to words 2 and 3 in round 2. */
__device__ __forceinline__ uint2 philox_of_rows(const attn_cuda_dropout &dropout, uint4 at)
{
    uint32_t x[4] = {0, at.y, at.z, at.w};
    attn_philox_round(x, dropout.keys[0][0], dropout.keys[0][1]);
    x[1] = x[2] = x[3] = 0; /* of the keys */
    attn_philox_round(x, 0, 0);
    return {x[2], x[3]};
}

/* The words of the calls of these keys and rows, side by side, which hides their latency. */
template <int CALLS>
__device__ __forceinline__ void philox_words(const attn_cuda_dropout &dropout,
                                             const uint4 (&keys)[CALLS], uint2 rows,
                                             uint32_t (&words)[CALLS][4])
{
#pragma unroll
    for (int c = 0; c < CALLS; c++) {
        const uint64_t product = (uint64_t)ATTN_PHILOX_M1 * (keys[c].y ^ rows.x);
        words[c][0] = keys[c].x ^ (uint32_t)(product >> 32), words[c][1] = (uint32_t)product;
        words[c][2] = keys[c].z ^ rows.y, words[c][3] = keys[c].w;
    }
#pragma unroll
    for (int round = 3; round < ATTN_PHILOX_ROUNDS; round++) {
#pragma unroll
        for (int c = 0; c < CALLS; c++) {
            attn_philox_round(words[c], dropout.keys[round][0], dropout.keys[round][1]);
        }
    }
}
