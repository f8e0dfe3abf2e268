/*
 * codes.h: elements of quantised tensors, one at a time: the value of a code, the code of a value,
 * scale and shift of a group. A code is a small number: an integer of 8 or 4 bits, or a float of 8.
 * C and CUDA.
 */
#ifndef ATTN_CORE_CODES_H
#define ATTN_CORE_CODES_H

#include "core/code_types.h"
#include "core/half.h"
#include "core/kv.h"

/* The largest code. */
ATTN_CORE float attn_code_most(int32_t dtype)
{
    return dtype == ATTN_I8 ? 127 : dtype == ATTN_I4X2 ? 7 : dtype == ATTN_E4M3 ? 448 : 57344;
}

/* Reads the code of column `odd` (0 or 1; 0 unless i4x2) of an element as a number. */
ATTN_CORE float attn_code_at(const void *element, int32_t dtype, int64_t odd)
{
    const uint8_t bits = *(const uint8_t *)element;
    switch (dtype) {
    case ATTN_I8:
        return (float)(int8_t)bits;
    case ATTN_I4X2: /* the sign bit counts -8 */
        return (float)(((bits >> 4 * odd & 15) ^ 8) - 8);
    case ATTN_E5M2:
        return attn_f16_to_f32((uint16_t)(bits << 8));
    default: { /* e4m3: the bits of an f16 that is 2^-8 of it; all ones is NaN */
        const uint16_t half = (uint16_t)((bits & 0x80) << 8 | (bits & 0x7f) << 7);
        return (bits & 0x7f) == 0x7f ? NAN : attn_f16_to_f32(half) * 256;
    }
    }
}

/* attn_quantize_args, checked. Scale and shift may be absent. */
typedef struct attn_quantized {
    attn_tensor x, codes, scale, shift;
    bool given; /* scale and shift are inputs */
} attn_quantized;

/* Scale and shift of a row of codes, as attn_rows has them (table.h); columns share them by
 * groups. */
typedef struct attn_row_codes {
    const void *scale, *shift;    /* elements of row 0 and group 0; NULL: 1 and 0 */
    int64_t scale_row, shift_row; /* elements from row to row; 0: shared */
    int64_t scale_group, shift_group;
    int64_t group; /* columns */
    int32_t dtype; /* type of scale and shift */
} attn_row_codes;

/* Reads an element of type f32, f16 or bf16. */
ATTN_CORE float attn_code_factor(const void *data, int64_t at, int32_t dtype)
{
    return dtype == ATTN_F32   ? ((const float *)data)[at]
           : dtype == ATTN_F16 ? attn_f16_to_f32(((const uint16_t *)data)[at])
                               : attn_bf16_to_f32(((const uint16_t *)data)[at]);
}

ATTN_CORE float attn_row_scale(const attn_row_codes *codes, int64_t row, int64_t group)
{
    const int64_t at = row * codes->scale_row + group * codes->scale_group;
    return codes->scale ? attn_code_factor(codes->scale, at, codes->dtype) : 1;
}

ATTN_CORE float attn_row_shift(const attn_row_codes *codes, int64_t row, int64_t group)
{
    const int64_t at = row * codes->shift_row + group * codes->shift_group;
    return attn_code_factor(codes->shift, at, codes->dtype);
}

/* The value of a code, with which attention computes. */
ATTN_CORE float attn_code_value(float code, float scale, const float *shift)
{
    return shift ? fmaf(scale, code, *shift) : scale * code;
}

/* The value of column c of a row of codes, which begins at `data`. */
ATTN_CORE float attn_row_value(const char *data, int64_t stride, int32_t dtype,
                               const attn_row_codes *codes, int64_t row, int64_t c)
{
    const int64_t each = attn_code_columns(dtype), group = c / codes->group;
    const float code = attn_code_at(data + c / each * stride, dtype, c % each);
    const float shift = codes->shift ? attn_row_shift(codes, row, group) : 0;
    return attn_code_value(code, attn_row_scale(codes, row, group), codes->shift ? &shift : NULL);
}

/* Names of tensors for the sentences of errors. */
typedef struct attn_code_names {
    const char *codes, *scale, *shift;
} attn_code_names;

/* Checks scale and shift of codes with so many columns (codes.c), or of no codes. */
attn_status attn_check_factors(const attn_code_names *names, const attn_tensor *codes,
                               const attn_tensor *scale, const attn_tensor *shift, int64_t columns,
                               bool output);

/* True if each row of the codes has a scale of its own, else it shares one. */
bool attn_codes_own_scales(const attn_tensor *scale, const attn_tensor *codes);

/* ---- The code of a value --------------------------------------------------------------------- */

/* Rounds x to a float of 8 bits, ties to even, no larger than `most`: with `digits` bits of
 * significand and 2^lowest the unit of subnormals. */
ATTN_CORE double attn_round_f8(double x, int digits, int lowest, double most)
{
    int exponent;
    const double size = fabs(x) < most ? fabs(x) : most;
    (void)frexp(size, &exponent);
    const int unit = exponent - digits > lowest ? exponent - digits : lowest;
    const double rounded = ldexp(nearbyint(ldexp(size, -unit)), unit);
    return copysign(rounded < most ? rounded : most, x);
}

/* The bits of the code nearest to y, an integer no lower than `least`. NaN: 0, or the code of
 * NaN. */
ATTN_CORE uint8_t attn_code_bits(double y, int32_t dtype, double least)
{
    const double most = (double)attn_code_most(dtype);
    if (dtype == ATTN_I8 || dtype == ATTN_I4X2) {
        const int code = y != y ? 0 : (int)nearbyint(y < least ? least : y > most ? most : y);
        return (uint8_t)(code & (dtype == ATTN_I8 ? 255 : 15));
    }
    if (y != y) {
        return dtype == ATTN_E4M3 ? 0x7f : 0x7e;
    }
    if (dtype == ATTN_E5M2) {
        return (uint8_t)(attn_f32_to_f16((float)attn_round_f8(y, 3, -16, most)) >> 8);
    }
    const uint16_t half = attn_f32_to_f16((float)(attn_round_f8(y, 4, -9, most) / 256));
    return (uint8_t)((half >> 8 & 0x80) | (half >> 7 & 0x7f));
}

/* Stores a scale, a shift or a value in its type. One NaN stands for all: processors make different
 * ones. */
ATTN_CORE void attn_code_store(void *p, int32_t dtype, double x)
{
    const bool is_nan = x != x;
    switch (dtype) {
    case ATTN_F64:
        attn_element_from_f64(p, ATTN_F64, x);
        if (is_nan) {
            *(uint64_t *)p = UINT64_C(0x7ff8) << 48;
        }
        break;
    case ATTN_F32:
        *(uint32_t *)p = is_nan ? 0x7fc00000u : attn_f32_to_bits((float)x);
        break;
    case ATTN_F16:
        *(uint16_t *)p = is_nan ? 0x7e00 : attn_f32_to_f16(attn_f64_to_f32_odd(x));
        break;
    default:
        *(uint16_t *)p = is_nan ? 0x7fc0 : attn_f32_to_bf16(attn_f64_to_f32_odd(x));
        break;
    }
}

/* The elements of a group: the least and the largest number, and whether all are finite. */
typedef struct attn_code_range {
    double low, high;
    bool finite;
} attn_code_range;

/* The range of no element, and of one. */
ATTN_CORE attn_code_range attn_code_no_range(void)
{
    const attn_code_range none = {INFINITY, -INFINITY, true};
    return none;
}

ATTN_CORE attn_code_range attn_code_range_of(double x)
{
    const attn_code_range one = {x, x, x - x == 0};
    return one;
}

/* The range of two groups as one. NaN widens nothing. */
ATTN_CORE attn_code_range attn_code_join(attn_code_range a, attn_code_range b)
{
    a.low = b.low < a.low ? b.low : a.low;
    a.high = b.high > a.high ? b.high : a.high;
    a.finite = a.finite && b.finite;
    return a;
}

/* Scale of a group of elements from `low` to `high`, then its shift by the scale as stored. */
ATTN_CORE double attn_code_scale(double low, double high, int32_t dtype, bool shifted)
{
    const double most = (double)attn_code_most(dtype);
    return shifted ? (high - low) / (2 * most + 1) : fmax(fabs(low), fabs(high)) / most;
}

ATTN_CORE double attn_code_shift(double low, double scale, int32_t dtype)
{
    return low + ((double)attn_code_most(dtype) + 1) * scale;
}

/* Stores scale and shift (NULL: there is none) of a group, in their type. Elements that are not
 * finite have no scale: NaN. */
ATTN_CORE void attn_code_store_factors(const attn_code_range *range, int32_t codes, int32_t dtype,
                                       void *scale, void *shift)
{
    const double size = attn_code_scale(range->low, range->high, codes, shift != NULL);
    attn_code_store(scale, dtype, range->finite ? size : (double)NAN);
    if (shift != NULL) {
        const double stored = attn_element_to_f64(scale, dtype);
        attn_code_store(shift, dtype, attn_code_shift(range->low, stored, codes));
    }
}

/* The bits of the code nearest to x by a scale and a shift, 0 where there is none. */
ATTN_CORE uint8_t attn_code_nearest(double x, double scale, double shift, int32_t dtype,
                                    bool shifted)
{
    const double most = (double)attn_code_most(dtype), y = scale == 0 ? 0 : (x - shift) / scale;
    return attn_code_bits(y, dtype, shifted ? -most - 1 : -most);
}

#endif
