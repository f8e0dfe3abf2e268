/*
 * flags.cuh: bytes of a mask tensor that are not 0.
 */
#pragma once
#include <stdint.h>

/* Bit 7 of the bytes that are not 0. */
__device__ __forceinline__ uint32_t byte_flags(uint32_t x)
{
    return (((x & 0x7f7f7f7f) + 0x7f7f7f7f) | x) & 0x80808080;
}
