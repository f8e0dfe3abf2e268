/*
 * entry.cuh: in place of src/cuda/kernel/ptx/entry.cuh, on the emulated GPU.
 */
#pragma once
#include "machine.h"

namespace ptx
{

template <int BYTES> inline void copy_entry(uint32_t to, const void *at)
{
    emulated::copy_own(to, at, BYTES, BYTES);
}

inline size_t opaque_global(const void *p)
{
    return (size_t)p;
}

inline const char *step_from(const char *from, int n, int step)
{
    return from + (int64_t)n * step;
}

template <class T> inline T *from_global(size_t x)
{
    return (T *)x;
}

} // namespace ptx
