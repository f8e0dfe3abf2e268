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

/* min(x + y, z), of sums without their carry. */
__device__ __forceinline__ uint32_t min_of_sum_pair(uint32_t x, uint32_t y, uint32_t z)
{
    return __viaddmin_u16x2(x, y, z);
}

} // namespace ptx
