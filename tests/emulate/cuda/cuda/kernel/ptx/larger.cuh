/*
 * larger.cuh: in place of src/cuda/kernel/ptx/larger.cuh, on the emulated GPU.
 */
#pragma once
#include <math.h>

namespace ptx
{

inline float larger(float x, float y)
{
    return x != x || y != y ? NAN : fmaxf(x, y);
}

} // namespace ptx
