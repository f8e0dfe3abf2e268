/*
 * half.c: one encoder and one decoder for any 16-bit float with a sign, e exponent bits and m
 * mantissa bits.
 */
#include "half.h"

#include <attn/attn.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* 2^e, a normal number. ldexp takes ten times as long, and judges decode every element. */
static double power(int e)
{
    const uint64_t bits = (uint64_t)(e + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double decode(uint16_t bits, int e_bits, int m_bits)
{
    int all_ones = (1 << e_bits) - 1, bias = all_ones >> 1;
    int exponent = (bits >> m_bits) & all_ones;
    int mantissa = bits & ((1 << m_bits) - 1);
    double sign = bits & 0x8000 ? -1.0 : 1.0;
    if (exponent == all_ones) {
        return mantissa ? (double)NAN : sign * (double)INFINITY;
    }
    if (exponent == 0) {
        return sign * mantissa * power(1 - bias - m_bits);
    }
    return sign * (mantissa + (1 << m_bits)) * power(exponent - bias - m_bits);
}

static uint16_t encode(double x, int e_bits, int m_bits)
{
    int all_ones = (1 << e_bits) - 1, bias = all_ones >> 1;
    int sign = signbit(x) ? 0x8000 : 0, infinity = all_ones << m_bits, exponent;
    if (isnan(x)) {
        return (uint16_t)(sign | infinity | 1 << (m_bits - 1));
    }
    if (isinf(x)) {
        return (uint16_t)(sign | infinity);
    }
    frexp(x, &exponent);
    /* the exponent of one unit in the last place, as a normal number */
    int unit = exponent - 1 - m_bits;
    if (x == 0 || unit < 1 - bias - m_bits) {
        unit = 1 - bias - m_bits;
    }
    if (unit + bias + m_bits > all_ones) {
        return (uint16_t)(sign | infinity);
    }
    /* In units: below 2^m for a subnormal, else in [2^m, 2^(m+1)]. A carry runs into the
     * exponent. */
    double units = nearbyint(fabs(x) * power(-unit));
    int bits = ((unit + bias + m_bits - 1) << m_bits) + (int)units;
    return (uint16_t)(sign | (bits < infinity ? bits : infinity));
}

double half_f16_to_double(uint16_t bits)
{
    return decode(bits, 5, 10);
}

double half_bf16_to_double(uint16_t bits)
{
    return decode(bits, 8, 7);
}

uint16_t half_f16_from_double(double x)
{
    return encode(x, 5, 10);
}

uint16_t half_bf16_from_double(double x)
{
    return encode(x, 8, 7);
}

double half_rounded(int32_t dtype, double x)
{
    switch (dtype) {
    case ATTN_F32:
        return (double)(float)x;
    case ATTN_F16:
        return half_f16_to_double(half_f16_from_double(x));
    case ATTN_BF16:
        return half_bf16_to_double(half_bf16_from_double(x));
    default:
        return x;
    }
}
