/* pairs.cuh: counterpart of src/cuda/kernel/ptx/pairs.cuh. */
#pragma once
#include <stdint.h>

namespace ptx
{

inline uint32_t of_pair(uint32_t low, uint32_t high)
{
    return (low & 0xFFFF) | high << 16;
}

inline uint32_t without(uint32_t x, uint32_t bits)
{
    return x & ~bits;
}

inline uint32_t min_pair(uint32_t x, uint32_t y)
{
    return of_pair((x & 0xFFFF) < (y & 0xFFFF) ? x : y, (x >> 16 < y >> 16 ? x : y) >> 16);
}

inline uint32_t max_of_sum_signed_pair(uint32_t x, uint32_t y, uint32_t z)
{
    const int16_t low = (int16_t)(x + y), high = (int16_t)((x >> 16) + (y >> 16));
    return of_pair(low > (int16_t)z ? low : z, high > (int16_t)(z >> 16) ? high : z >> 16);
}

inline uint32_t max_pair(uint32_t x, uint32_t y)
{
    return of_pair((x & 0xFFFF) > (y & 0xFFFF) ? x : y, (x >> 16 > y >> 16 ? x : y) >> 16);
}

inline uint32_t min_of_sum_pair(uint32_t x, uint32_t y, uint32_t z)
{
    const uint32_t low = (x + y) & 0xFFFF, high = ((x >> 16) + (y >> 16)) & 0xFFFF;
    return of_pair(low < (z & 0xFFFF) ? low : z, high < z >> 16 ? high : z >> 16);
}

} // namespace ptx
