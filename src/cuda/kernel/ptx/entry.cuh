/*
 * entry.cuh: entries of a table of pages, and other words; addresses that wait in registers.
 */
#pragma once
#include <stdint.h>

namespace ptx
{

/* Copies an entry, or a word of that size, to shared memory, and what lies beside it into the L2
 * cache; not waited for (copy_async_commit). */
template <int BYTES> __device__ __forceinline__ void copy_entry(uint32_t to, const void *at)
{
    asm volatile("cp.async.ca.shared.global.L2::256B [%0], [%1], %2;" ::"r"(to), "l"(at), "n"(BYTES)
                 : "memory");
}

/* An address in global memory, which is in registers from here on; and as a pointer again. */
__device__ __forceinline__ size_t opaque_global(const void *p)
{
    size_t x = __cvta_generic_to_global(p);
    asm volatile("" : "+l"(x));
    return x;
}

/* The address n steps from another. Compilers take three to five instructions. */
__device__ __forceinline__ const char *step_from(const char *from, int n, int step)
{
    const char *x;
    asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(x) : "r"(n), "r"(step), "l"(from));
    return x;
}

template <class T> __device__ __forceinline__ T *from_global(size_t x)
{
    return (T *)__cvta_global_to_generic(x);
}

} // namespace ptx
