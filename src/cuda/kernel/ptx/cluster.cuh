/*
 * cluster.cuh: pairs of CTAs, a cluster of two: each reads, writes and signals in the shared memory
 * of the other, where what both declare alike lies at the same address.
 */
#pragma once
#include "cuda/kernel/ptx/ptx.cuh"

namespace cluster
{

/* The CTA's number in its pair. */
__device__ __forceinline__ uint32_t rank()
{
    uint32_t x;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(x));
    return x;
}

/* Says that the thread has come here. The barrier is one of all threads of both CTAs that have not
 * ended. */
__device__ __forceinline__ void arrive()
{
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}

/* Waits until all have. */
__device__ __forceinline__ void wait()
{
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

/* An address of the CTA with that number, from one of this CTA. */
__device__ __forceinline__ uint32_t address_of(uint32_t address, uint32_t cta)
{
    uint32_t x;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(x) : "r"(address), "r"(cta));
    return x;
}

__device__ __forceinline__ uint32_t load_4(uint32_t from, uint32_t cta)
{
    uint32_t x;
    asm volatile("ld.shared::cluster.u32 %0, [%1];"
                 : "=r"(x)
                 : "r"(address_of(from, cta))
                 : "memory");
    return x;
}

/* Arrives at a barrier of that CTA, which learns that products of this one have read what it gave,
 * and nothing of what this thread has written: for that the thread would wait until its additions
 * to global memory are done. */
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier, uint32_t cta)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_of(barrier, cta))
                 : "memory");
}

/* Returns when the phase of that parity is complete, for a thread that waits for most of the time:
 * it sleeps, where asking again and again would take issue slots from others. */
__device__ __forceinline__ void sleep(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 10000000;\n"
                 "@!done bra again;\n"
                 "}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Copies bytes to that CTA; its barrier, at which this arrives too, counts what has come. */
__device__ __forceinline__ void copy(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier,
                                     uint32_t cta)
{
    const uint32_t there = address_of(barrier, cta);
    asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(there),
                 "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(address_of(to, cta)),
                 "r"(from), "r"(bytes), "r"(there)
                 : "memory");
}

} // namespace cluster
