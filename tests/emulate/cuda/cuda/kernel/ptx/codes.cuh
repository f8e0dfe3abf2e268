/*
 * codes.cuh: in place of src/cuda/kernel/ptx/codes.cuh, on the emulated GPU.
 */
#pragma once
#include "core/codes.h"
#include "cuda/kernel/ptx/ptx.cuh"

namespace ptx
{

static constexpr bool HAS_E4M3 = true;

inline void e4m3_halves(uint32_t codes, uint32_t &low, uint32_t &high)
{
    float x[4];
    for (int i = 0; i < 4; i++) {
        const uint8_t code = (uint8_t)(codes >> 8 * i);
        x[i] = attn_code_at(&code, ATTN_E4M3, 0);
    }
    low = pack_half<false>(x[0], x[1]), high = pack_half<false>(x[2], x[3]);
}

} // namespace ptx
