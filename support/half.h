/*
 * half.h: binary16 and bfloat16 to double and back, by arithmetic on the formula of the format.
 * Plain and slow, for the oracle and for inputs. Shares nothing with the library's src/core/half.h.
 */
#ifndef SUPPORT_HALF_H
#define SUPPORT_HALF_H

#include <stdint.h>

double half_f16_to_double(uint16_t bits);
double half_bf16_to_double(uint16_t bits);

/* Rounds to nearest, ties to even. Overflow gives infinity; NaN stays NaN. */
uint16_t half_f16_from_double(double x);
uint16_t half_bf16_from_double(double x);

/* x rounded to an attn_dtype of floating point, as a double. */
double half_rounded(int32_t dtype, double x);

#endif
