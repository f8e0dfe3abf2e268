/*
 * halves.h: 16-bit types for the emulated GPU, by the library's own conversions.
 */
#pragma once
#define restrict __restrict__
#include "core/half.h"

namespace emulated
{

template <bool BF16> inline float half_to_float(uint16_t x)
{
    return BF16 ? attn_bf16_to_f32(x) : attn_f16_to_f32(x);
}

template <bool BF16> inline uint16_t float_to_half(float x)
{
    return BF16 ? attn_f32_to_bf16(x) : attn_f32_to_f16(x);
}

/* A double cut to a float whose last bit is 1 if anything was cut off: rounding it once more is
 * rounding the double once. */
inline float cut_to_float(double x)
{
    float y = (float)x;
    uint32_t bits;
    if (x != x || (double)y == x) {
        return y;
    }
    memcpy(&bits, &y, sizeof bits);
    bits -= fabs((double)y) > fabs(x);
    bits |= 1;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* Half `high` of a word. */
template <bool BF16> inline float half_of(uint32_t word, int high)
{
    return half_to_float<BF16>((uint16_t)(word >> 16 * high));
}

} // namespace emulated
