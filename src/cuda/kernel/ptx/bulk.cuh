/*
 * bulk.cuh: bytes from global memory by the TMA, without a tensor map, and sums as it makes them;
 * sums that products go on with.
 */
#pragma once
#include "cuda/kernel/ptx/tma.cuh"

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

namespace ptx
{

/* Loads four numbers, or makes them 0, without a branch: ptxas serialises products that add to
 * registers with two definitions. */
__device__ __forceinline__ void load_or_clear(float &x, float &y, float &z, float &w,
                                              const float4 *from, bool there)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n"
                 "mov.f32 %0, 0f00000000;\nmov.f32 %1, 0f00000000;\n"
                 "mov.f32 %2, 0f00000000;\nmov.f32 %3, 0f00000000;\n"
                 "@p ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
                 : "=&f"(x), "=&f"(y), "=&f"(z), "=&f"(w)
                 : "l"(from), "r"((uint32_t)there)
                 : "memory");
}

/* Waits until what the thread has written or seen is there for the whole GPU. */
__device__ __forceinline__ void fence_gpu()
{
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

/* Loads 16 bytes, which are the first to leave the L2 cache then, or zeros. */
__device__ __forceinline__ uint4 load_once(const void *from, bool there)
{
    uint4 x = {0, 0, 0, 0};
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n"
                 "@p ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], "
                 "%6;\n}"
                 : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
                 : "l"(from), "r"((uint32_t)there), "l"(tma::EVICT_FIRST));
    return x;
}

} // namespace ptx
