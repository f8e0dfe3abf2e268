/*
 * codes.h: codes of quantised tensors as numbers and back, from the definitions of the formats.
 * Plain and slow, for the oracle and for inputs. Shares nothing with src/core/codes.h.
 */
#ifndef SUPPORT_CODES_H
#define SUPPORT_CODES_H

#include <attn/attn.h>
#include <stdbool.h>

/* True for i8, i4x2, e4m3 and e5m2, which says nothing of a mask of i8. */
bool codes_type(int32_t dtype);

/* Columns in an element of memory. */
int64_t codes_columns(int32_t dtype);

/* The number of an element: of i4x2 the one in the lower or, if odd, in the upper half. */
double codes_number(int32_t dtype, uint8_t bits, bool odd);

/* The bits of the number nearest to x, within the type's range; integers of NaN are 0. */
uint8_t codes_bits(int32_t dtype, double x);

/* Standard deviation that makes use of a type's range. */
double codes_spread(int32_t dtype);

/* The value of column c of row (i0, i1, i2) of k or v: scale code + shift in f32. */
double codes_value(const attn_tensor *t, const attn_tensor *scale, const attn_tensor *shift,
                   const int64_t row[3], int64_t c);

#endif
