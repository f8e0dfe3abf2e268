/*
 * entry.cuh: entries of a table of pages, loaded as they are.
 */
#pragma once
#include <stdint.h>

namespace ptx
{

/* Loads an integer of 4 bytes, or of 8 if `wide`, as two words, and what lies beside it into the L2
 * cache. */
__device__ __forceinline__ void load_entry(const void *at, bool wide, uint32_t &low, uint32_t &high)
{
    asm volatile("{\n.reg .pred wide;\nsetp.ne.u32 wide, %3, 0;\n"
                 "ld.global.L2::256B.b32 %0, [%2];\n@wide ld.global.b32 %1, [%2 + 4];\n}"
                 : "=r"(low), "+r"(high)
                 : "l"(at), "r"((uint32_t)wide));
}

} // namespace ptx
