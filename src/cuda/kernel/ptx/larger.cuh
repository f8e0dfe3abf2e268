/*
 * larger.cuh: the larger of two numbers, by an instruction that CUDA C has no word for.
 */
#pragma once

namespace ptx
{

/* NaN if one is. */
__device__ __forceinline__ float larger(float x, float y)
{
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

} // namespace ptx
