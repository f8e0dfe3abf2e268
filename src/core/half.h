/*
 * half.h: the bits of binary16 and bfloat16, and one element of any type as float or double.
 *
 * Conversions round to nearest, ties to even, as the hardware's do, NaN payloads included. So a
 * result does not depend on which of the two converted it. C and CUDA.
 */
#ifndef ATTN_CORE_HALF_H
#define ATTN_CORE_HALF_H

#include "core/compiler.h"
#include <attn/attn.h>
#include <math.h>
#include <string.h>

ATTN_CORE float attn_bits_to_f32(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

ATTN_CORE uint32_t attn_f32_to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

ATTN_CORE float attn_bf16_to_f32(uint16_t h)
{
    return attn_bits_to_f32((uint32_t)h << 16);
}

ATTN_CORE uint16_t attn_f32_to_bf16(float x)
{
    uint32_t u = attn_f32_to_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((u >> 16) | 0x40u); /* quiet NaN, payload cut */
    }
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

ATTN_CORE float attn_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00u) { /* inf, NaN (made quiet) */
        return attn_bits_to_f32(sign | 0x7f800000u | ((rest & 0x3ffu) << 13) |
                                (rest > 0x7c00u ? 0x400000u : 0));
    }
    if (rest >= 0x400u) {
        return attn_bits_to_f32(sign | ((rest << 13) + (112u << 23)));
    }
    float x = (float)rest * 0x1p-24f; /* subnormal: exact */
    return sign ? -x : x;
}

ATTN_CORE uint16_t attn_f32_to_f16(float x)
{
    uint32_t u = attn_f32_to_bits(x), sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | ((mag >> 13) & 0x3ffu));
    }
    if (mag >= 0x47800000u) { /* 2^16 and above */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (mag < 0x38800000u) { /* below 2^-14: adding 2^-1 leaves round(x / 2^-24) in the low bits */
        return (uint16_t)(sign | (attn_f32_to_bits(attn_bits_to_f32(mag) + 0.5f) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((mag - (112u << 23) + 0xfffu + ((mag >> 13) & 1u)) >> 13));
}

/* Bytes of an element of a floating type or of codes: attn_dtype_size for loops over rows. */
ATTN_CORE int64_t attn_element_size(int32_t dtype)
{
    return dtype == ATTN_F64 ? 8 : dtype == ATTN_F32 ? 4 : dtype <= ATTN_BF16 ? 2 : 1;
}

/* One element as double; dtype must be a floating type. */
ATTN_CORE double attn_element_to_f64(const void *p, int32_t dtype)
{
    switch (dtype) {
    case ATTN_F64:
        return *(const double *)p;
    case ATTN_F32:
        return (double)*(const float *)p;
    case ATTN_F16:
        return (double)attn_f16_to_f32(*(const uint16_t *)p);
    default:
        return (double)attn_bf16_to_f32(*(const uint16_t *)p);
    }
}

/* Rounds x to a float that rounds to 16 bits as x does: cut off, with its last bit set if anything
 * was lost. So a value that is not halfway between two of them does not become so (Boldo and
 * Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to
 * odd", 2008). */
ATTN_CORE float attn_f64_to_f32_odd(double x)
{
    float f = (float)x;
    uint32_t bits = attn_f32_to_bits(f);
    if ((double)f == x || x != x) {
        return f;
    }
    bits -= fabs((double)f) > fabs(x) ? 1 : 0;
    return attn_bits_to_f32(bits | 1u);
}

/* Stores one element from double, rounded once. */
ATTN_CORE void attn_element_from_f64(void *p, int32_t dtype, double x)
{
    switch (dtype) {
    case ATTN_F64:
        *(double *)p = x;
        break;
    case ATTN_F32:
        *(float *)p = (float)x;
        break;
    case ATTN_F16:
        *(uint16_t *)p = attn_f32_to_f16(attn_f64_to_f32_odd(x));
        break;
    default:
        *(uint16_t *)p = attn_f32_to_bf16(attn_f64_to_f32_odd(x));
        break;
    }
}

#endif
