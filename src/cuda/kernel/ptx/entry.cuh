/*
 * entry.cuh: entries of a table of pages.
 */
#pragma once
#include <stdint.h>

namespace ptx
{

/* Copies an entry to shared memory, and what lies beside it into the L2 cache; not waited for
 * (copy_async_commit). */
template <int BYTES> __device__ __forceinline__ void copy_entry(uint32_t to, const void *at)
{
    asm volatile("cp.async.ca.shared.global.L2::256B [%0], [%1], %2;" ::"r"(to), "l"(at), "n"(BYTES)
                 : "memory");
}

} // namespace ptx
