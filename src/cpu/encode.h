/*
 * encode.h: elements into codes, group by group, for appended rows and for whole tensors.
 */
#ifndef ATTN_CPU_ENCODE_H
#define ATTN_CPU_ENCODE_H

#include "core/backend.h"

/* Encodes elements that share scales along the first three axes: index s[a] of an axis of the
 * scale, or all where its extent is 1. Writes codes, and scale and shift of each group of columns
 * unless they are given. */
void attn_encode(const attn_quantized *t, const int64_t s[3]);

/* The scale or shift of a group of columns at s, or `absent` without any. */
double attn_factor_at(const attn_tensor *factor, const int64_t s[3], int64_t group, double absent);

#endif
