/*
 * bulk.cuh: in place of src/cuda/kernel/ptx/bulk.cuh, on the emulated GPU.
 */
#pragma once
#include "cuda/kernel/ptx/ptx.cuh"

namespace tma
{

inline void load_words(uint32_t to, const float *from, uint32_t bytes, uint32_t barrier)
{
    /* a copy may begin at once; no NaN, which would be noted and mended */
    memset(emulated::shared_at(to), 0x3F, bytes);
    emulated::later([=] {
        memcpy(emulated::shared_at(to), from, bytes);
        emulated::mbarrier_bytes(barrier, bytes);
    });
}

inline float sum_of(float x, float y)
{
    return x + y;
}

} // namespace tma

namespace ptx
{

inline void load_or_clear(float &x, float &y, float &z, float &w, const float4 *from, bool there)
{
    const float4 sums = there ? *from : float4{0, 0, 0, 0};
    x = sums.x, y = sums.y, z = sums.z, w = sums.w;
}

inline void fence_gpu()
{
}

inline uint4 load_once(const void *from, bool there)
{
    return there ? *(const uint4 *)from : uint4{0, 0, 0, 0};
}

} // namespace ptx
