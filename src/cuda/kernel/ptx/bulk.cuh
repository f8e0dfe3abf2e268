/*
 * bulk.cuh: bytes from global memory by the TMA, without a tensor map, and sums as it makes them.
 */
#pragma once
#include "cuda/kernel/ptx/ptx.cuh"

namespace tma
{

/* Loads bytes, a multiple of 16; the barrier counts those that have come. */
__device__ __forceinline__ void load_words(uint32_t to, const float *from, uint32_t bytes,
                                           uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* A sum as the TMA's additions make it: subnormal numbers are 0. */
__device__ __forceinline__ float sum_of(float x, float y)
{
    float sum;
    asm("add.ftz.f32 %0, %1, %2;" : "=f"(sum) : "f"(x), "f"(y));
    return sum;
}

} // namespace tma
