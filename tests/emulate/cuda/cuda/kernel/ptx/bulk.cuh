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
