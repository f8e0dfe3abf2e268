/*
 * quantize.h: tensors into codes and back.
 */
#ifndef ATTN_CPU_QUANTIZE_H
#define ATTN_CPU_QUANTIZE_H

#include "core/backend.h"

/* Elements that share scales along the first three axes: index s[a] of an axis of the scale, or all
 * where its extent is 1. Writes their codes, and scale and shift of each group of columns unless
 * they are given. */
void attn_encode(const attn_quantized *t, const int64_t s[3]);

/* The operations of the table (core/backend.h). */
void attn_cpu_quantize(const void *device, const attn_quantized *t);
void attn_cpu_dequantize(const void *device, const attn_quantized *t);

#endif
