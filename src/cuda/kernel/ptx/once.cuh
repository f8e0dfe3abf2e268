/*
 * once.cuh: copies of what is read once.
 */
#pragma once
#include <stdint.h>

namespace ptx
{

/* A number that is the same in all lanes, as one that may not be. The lane is taken modulo 32. */
__device__ __forceinline__ uint32_t of_lane(uint32_t x)
{
    return __shfl_sync(~0u, x, threadIdx.x);
}

/* copy_async_16, of lines that the L2 cache gives up before others. to: of_lane, and constants:
 * where ptxas 13.0 knows a part of it to be the same in all lanes it makes an illegal instruction,
 * LDGSTS [R + UR], whose policy has another register than it says. */
__device__ __forceinline__ void copy_async_16_once(uint32_t to, const void *from)
{
    uint64_t first;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(from), "l"(first)
                 : "memory");
}

} // namespace ptx
