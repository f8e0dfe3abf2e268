/*
 * codes.h: codes of quantised tensors as numbers and back, from the definitions of the formats.
 * Plain and slow, for the oracle and for inputs. Shares nothing with src/core/codes.h.
 */
#ifndef SUPPORT_CODES_H
#define SUPPORT_CODES_H

#include <attn/attn.h>
#include <stdbool.h>

/* True for i8, i4x2, e4m3 and e5m2. A mask of i8 is not one of codes, though its type is. */
bool codes_type(int32_t dtype);

/* Columns that one element of memory holds. */
int64_t codes_columns(int32_t dtype);

/* The number that an element stands for: of i4x2 in its lower or, if odd, upper half. */
double codes_number(int32_t dtype, uint8_t bits, bool odd);

/* The bits of the number nearest to x, within the type's range; integers of NaN are 0. */
uint8_t codes_bits(int32_t dtype, double x);

/* A standard deviation that uses a type's range well. */
double codes_spread(int32_t dtype);

/* The value of column c of row (i0, i1, i2) of k or v: scale code + shift in f32. */
double codes_value(const attn_tensor *t, const attn_tensor *scale, const attn_tensor *shift,
                   const int64_t row[3], int64_t c);

#endif
