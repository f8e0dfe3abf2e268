/*
 * flags.cuh: bytes of a mask tensor that are not 0, and bits of them for the lanes of a quad.
 */
#pragma once
#include "cuda/kernel/ptx/ptx.cuh"

/* Bit 7 of the bytes that are not 0. */
__device__ __forceinline__ uint32_t byte_flags(uint32_t x)
{
    return (((x & 0x7f7f7f7f) + 0x7f7f7f7f) | x) & 0x80808080;
}

/* Makes bits of 32 elements that are 0 or 1, low first, by the lane of a quad whose columns they
 * are: byte q has those of elements 8 i + 2 q + {0, 1}, two for each i. A byte of a sum of words,
 * four apart in their bits, has elements 8 i + {0 .. 3}, or {4 .. 7}, of all i; then each second
 * byte takes the bits of the next one between its own. */
__device__ __forceinline__ uint32_t lane_bits(const uint4 &low, const uint4 &high)
{
    uint32_t even = low.x + (low.z << 2) + (high.x << 4) + (high.z << 6),
             odd = low.y + (low.w << 2) + (high.y << 4) + (high.w << 6);
    even |= even >> 7, odd |= odd >> 7;
    return ptx::permute(even, odd, 0x6420);
}

/* 1 for bytes that are not 0. */
__device__ __forceinline__ void make_ones(uint4 &x)
{
    x = make_uint4(byte_flags(x.x) >> 7, byte_flags(x.y) >> 7, byte_flags(x.z) >> 7,
                   byte_flags(x.w) >> 7);
}

/* Exchanges bytes within a quad: byte i of lane q becomes byte q of lane i. */
__device__ __forceinline__ uint32_t exchange_bytes(uint32_t x)
{
    const uint32_t lane = ptx::opaque(threadIdx.x);
    x = ptx::permute(x, __shfl_xor_sync(~0u, x, 1), lane & 1 ? 0x3715 : 0x6240);
    return ptx::permute(x, __shfl_xor_sync(~0u, x, 2), lane & 2 ? 0x3276 : 0x5410);
}

/* Makes bits of two rows (x[0], x[1]; x[2], x[3]) of 128 elements, of which a lane of a quad has
 * the 32 from 32 (lane % 4) on: those of elements 8 i + 2 (lane % 4) + {0, 1}. By all lanes. */
__device__ __forceinline__ uint2 quad_bits(uint4 (&x)[4])
{
    uint32_t any = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        any |= x[i].x | x[i].y | x[i].z | x[i].w;
    }
    if (__any_sync(~0u, any & ~0x01010101)) { /* rare: most masks are of 0 and 1 */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            make_ones(x[i]);
        }
    }
    return {exchange_bytes(lane_bits(x[0], x[1])), exchange_bytes(lane_bits(x[2], x[3]))};
}
