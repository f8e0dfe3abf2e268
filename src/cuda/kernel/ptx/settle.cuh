/*
 * settle.cuh: words that are computed before a wait for products which does not need them.
 */
#pragma once
#include <stdint.h>

namespace ptx
{

/* Makes ptxas compute words FROM .. TO - 1 of x, four or eight, before the wait that follows: it
 * would move them behind it. They are stored if never == ~0, which is never true. */
template <int FROM, int TO, int N>
__device__ __forceinline__ void settle(const uint32_t (&x)[N], uint32_t never)
{
    static_assert(TO - FROM == 4 || TO - FROM == 8, "one or two stores");
    constexpr int LAST = TO - 4;
    if constexpr (FROM == LAST) {
        asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %0, 0xffffffff;\n"
                     "@p st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n}" ::"r"(never),
                     "r"(x[FROM]), "r"(x[FROM + 1]), "r"(x[FROM + 2]), "r"(x[FROM + 3])
                     : "memory");
    } else {
        asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0xffffffff;\n@p bra past;\n"
                     "st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n"
                     "st.shared.v4.b32 [%0+16], {%5, %6, %7, %8};\npast:\n}" ::"r"(never),
                     "r"(x[FROM]), "r"(x[FROM + 1]), "r"(x[FROM + 2]), "r"(x[FROM + 3]),
                     "r"(x[LAST]), "r"(x[LAST + 1]), "r"(x[LAST + 2]), "r"(x[LAST + 3])
                     : "memory");
    }
}

} // namespace ptx
