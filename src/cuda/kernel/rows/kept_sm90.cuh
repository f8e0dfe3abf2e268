/*
 * kept_sm90.cuh: what dropout keeps of several calls of Philox (C11), side by side, which hides
 * their latency.
 */
#pragma once
#include "core/dropout.h"
#include "cuda/kernel/ptx/pairs.cuh"
#include "cuda/params.h"

/* Finds the bits of 4 WORDS calls: of counter `at`, and with 8 rows more each. Bits 4 c + i and
 * 16 + 4 c + i of kept[w] are those of word i of call 4 w + c. limit: numbers below it drop. */
template <int WORDS>
__device__ __forceinline__ void find_kept(const attn_cuda_dropout &dropout, uint32_t limit,
                                          uint4 at, uint32_t (&kept)[WORDS])
{
    const uint32_t below = (limit - 1) * 0x10001, back = (0x10001 - limit & 0xffff) * 0x10001;
    uint32_t calls[4 * WORDS][4];
#pragma unroll
    for (int c = 0; c < 4 * WORDS; c++) {
        calls[c][0] = at.x, calls[c][1] = at.y + 8 * c, calls[c][2] = at.z, calls[c][3] = at.w;
    }
#pragma unroll
    for (int round = 0; round < ATTN_PHILOX_ROUNDS; round++) {
#pragma unroll
        for (int c = 0; c < 4 * WORDS; c++) {
            attn_philox_round(calls[c], dropout.keys[round][0], dropout.keys[round][1]);
        }
    }
#pragma unroll
    for (int w = 0; w < WORDS; w++) {
        kept[w] = 0;
#pragma unroll
        for (int i = 15; i >= 0; i--) { /* 1 where a number is above `below` */
            const uint32_t number = ptx::max_pair(calls[4 * w + i / 4][i % 4], below);
            kept[w] = 2 * kept[w] + ptx::min_of_sum_pair(number, back, 0x10001);
        }
    }
}
