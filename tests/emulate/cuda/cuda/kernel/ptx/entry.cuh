/*
 * entry.cuh: in place of src/cuda/kernel/ptx/entry.cuh, on the emulated GPU.
 */
#pragma once
#include <stdint.h>
#include <string.h>

namespace ptx
{

inline void load_entry(const void *at, bool wide, uint32_t &low, uint32_t &high)
{
    memcpy(&low, at, 4);
    if (wide) {
        memcpy(&high, (const char *)at + 4, 4);
    }
}

} // namespace ptx
