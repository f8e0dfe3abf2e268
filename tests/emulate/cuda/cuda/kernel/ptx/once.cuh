/* once.cuh: counterpart of src/cuda/kernel/ptx/once.cuh. */
#pragma once
#include "cuda/kernel/ptx/ptx.cuh"

namespace ptx
{

inline uint32_t of_lane(uint32_t x)
{
    return x;
}

inline void copy_async_16_once(uint32_t to, const void *from)
{
    copy_async_16(to, from);
}

} // namespace ptx
