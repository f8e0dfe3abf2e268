/*
 * outputs.h: the outputs of a forward call as a whole: poison, copies of their bits, the oracle's
 * judgement.
 */
#ifndef TESTS_OP_OUTPUTS_H
#define TESTS_OP_OUTPUTS_H

#include <attn/attn.h>
#include <stddef.h>

/* Writes 0xFF, a NaN, into every element of o, lse and row_max, and nothing between them. */
void outputs_poison(const attn_forward_args *args);

/* Copies the elements of o, lse and row_max one after the other, whatever their strides; free() the
 * copy. */
unsigned char *outputs_copy(const attn_forward_args *args, size_t *bytes);

/* outputs_poison and outputs_copy for any tensors; those without data are left out. */
void outputs_poison_these(const attn_tensor *const *tensors, int count);
unsigned char *outputs_copy_these(const attn_tensor *const *tensors, int count, size_t *bytes);

/* The largest ratio of an error of o, lse or row_max to its bound (A1 with c = 4, A3); infinite
 * where one is NaN or infinite and the exact value is not, or the reverse. The sentence has the
 * numbers. */
double outputs_judge(const attn_forward_args *args, const char *table, char *sentence, size_t size);

/* Hash of all memory from the lowest to the highest element of each input. */
uint64_t outputs_inputs_hash(const attn_forward_args *args);

#endif
