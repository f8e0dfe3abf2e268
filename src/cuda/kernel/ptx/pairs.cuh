/*
 * pairs.cuh: instructions of sm_90 on two numbers of 16 bits without sign, the halves of a word.
 */
#pragma once
#include <stdint.h>

namespace ptx
{

/* max(x, y). */
__device__ __forceinline__ uint32_t max_pair(uint32_t x, uint32_t y)
{
    return __vmaxu2(x, y);
}

/* x without these bits, by one instruction wherever the compiler moves what is around it. */
__device__ __forceinline__ uint32_t without(uint32_t x, uint32_t bits)
{
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, 0, 0x30;" : "=r"(r) : "r"(x), "r"(bits));
    return r;
}

/* min(x, y). */
__device__ __forceinline__ uint32_t min_pair(uint32_t x, uint32_t y)
{
    return __vminu2(x, y);
}

/* max(x + y, z), of numbers with sign. */
__device__ __forceinline__ uint32_t max_of_sum_signed_pair(uint32_t x, uint32_t y, uint32_t z)
{
    return __viaddmax_s16x2(x, y, z);
}

/* min(x + y, z), of sums without their carry. */
__device__ __forceinline__ uint32_t min_of_sum_pair(uint32_t x, uint32_t y, uint32_t z)
{
    return __viaddmin_u16x2(x, y, z);
}

} // namespace ptx
