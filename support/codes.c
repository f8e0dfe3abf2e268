/*
 * codes.c: see codes.h.
 */
#include "codes.h"
#include "oracle.h"

#include <math.h>

bool codes_type(int32_t dtype)
{
    return dtype == ATTN_I8 || dtype == ATTN_I4X2 || dtype == ATTN_E4M3 || dtype == ATTN_E5M2;
}

int64_t codes_columns(int32_t dtype)
{
    return dtype == ATTN_I4X2 ? 2 : 1;
}

/* The number of a float of 8 bits with so many bits of fraction: (-1)^s (1 + f) 2^(e - bias); where
 * e is 0, f 2^(1 - bias). */
static double float_number(uint8_t bits, int fraction, int bias)
{
    const int e = (bits & 127) >> fraction, f = bits & ((1 << fraction) - 1);
    const double size = ldexp(e > 0 ? f + (1 << fraction) : f, (e > 0 ? e : 1) - bias - fraction);
    return bits & 128 ? -size : size;
}

double codes_number(int32_t dtype, uint8_t bits, bool odd)
{
    const int half = odd ? bits >> 4 : bits & 15;
    switch (dtype) {
    case ATTN_I8:
        return bits < 128 ? bits : bits - 256;
    case ATTN_I4X2:
        return half < 8 ? half : half - 16;
    case ATTN_E4M3:
        return (bits & 127) == 127 ? (double)NAN : float_number(bits, 3, 7);
    default:
        return (bits & 127) > 124    ? (double)NAN
               : (bits & 127) == 124 ? (bits & 128 ? -(double)INFINITY : (double)INFINITY)
                                     : float_number(bits, 2, 15);
    }
}

static uint8_t float_bits(double x, int fraction, int bias, double most)
{
    int e;
    const double size = fmin(fabs(x), most);
    (void)frexp(size, &e); /* below 2^e */
    e = size == 0 || e - 1 < 1 - bias ? 1 - bias : e - 1;
    /* the carry of a fraction that is rounded up to 2 goes into the exponent */
    const double f = rint(ldexp(size, fraction - e));
    const int bits = (int)f + ((e + bias - 1) << fraction);
    return (uint8_t)(bits | (signbit(x) ? 128 : 0));
}

uint8_t codes_bits(int32_t dtype, double x)
{
    const double most = dtype == ATTN_I8 ? 127 : 7;
    switch (dtype) {
    case ATTN_I8:
    case ATTN_I4X2:
        x = isnan(x) ? 0 : rint(fmax(-most - 1, fmin(most, x)));
        return (uint8_t)((int)x & (dtype == ATTN_I8 ? 255 : 15));
    case ATTN_E4M3:
        return isnan(x) ? 127 : float_bits(x, 3, 7, 448);
    default:
        return isnan(x) ? 127 : float_bits(x, 2, 15, 57344);
    }
}

double codes_spread(int32_t dtype)
{
    return dtype == ATTN_I8 ? 32 : dtype == ATTN_I4X2 ? 2.3 : 1;
}

static float factor(const attn_tensor *t, const int64_t row[3], int64_t group)
{
    return (float)oracle_element(t, t->shape[0] == 1 ? 0 : row[0], t->shape[1] == 1 ? 0 : row[1],
                                 t->shape[2] == 1 ? 0 : row[2], group);
}

double codes_value(const attn_tensor *t, const attn_tensor *scale, const attn_tensor *shift,
                   const int64_t row[3], int64_t c)
{
    const int64_t each = codes_columns(t->dtype), groups = scale->data ? scale->shape[3] : 1;
    const int64_t group = c / (t->shape[3] * each / groups);
    const uint8_t *at = (const uint8_t *)t->data + row[0] * t->stride[0] + row[1] * t->stride[1] +
                        row[2] * t->stride[2] + c / each * t->stride[3];
    const float number = (float)codes_number(t->dtype, *at, c % each != 0);
    const float by = scale->data ? factor(scale, row, group) : 1;
    return (double)(shift->data ? fmaf(by, number, factor(shift, row, group)) : by * number);
}
