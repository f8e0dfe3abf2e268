/*
 * real.h: the type of all numbers in the model: float, or double where the tests compare gradients
 * with central differences, for which float is too coarse.
 */
#ifndef TRAIN_GPT_REAL_H
#define TRAIN_GPT_REAL_H

#include <attn/attn.h>

#ifdef TRAIN_GPT_DOUBLE
typedef double real;
#define REAL_DTYPE ATTN_F64
#else
typedef float real;
#define REAL_DTYPE ATTN_F32
#endif

#endif
