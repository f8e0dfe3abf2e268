/*
 * codes.cuh: codes of 8 bits as numbers of 16 bits, by one instruction.
 */
#pragma once
#include <stdint.h>

namespace ptx
{

/* True on GPUs that have it. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
static constexpr bool HAS_E4M3 = true;
#else
static constexpr bool HAS_E4M3 = false;
#endif

/* Makes four codes of e4m3 two pairs of f16. */
__device__ __forceinline__ void e4m3_halves(uint32_t codes, uint32_t &low, uint32_t &high)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;\n}"
        : "=r"(low), "=r"(high)
        : "r"(codes));
#endif
}

} // namespace ptx
