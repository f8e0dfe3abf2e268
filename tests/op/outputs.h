/*
 * outputs.h: the outputs of a forward call as a whole: poison them, copy their bits, judge them by the oracle.
 */
#ifndef TESTS_OP_OUTPUTS_H
#define TESTS_OP_OUTPUTS_H

#include <attn/attn.h>
#include <stddef.h>

/* 0xFF, a NaN, into every element of o, lse and row_max; nothing between the elements is touched. */
void outputs_poison(const attn_forward_args *args);

/* The elements of o, lse and row_max one after the other, whatever their strides; free() it. */
unsigned char *outputs_copy(const attn_forward_args *args, size_t *bytes);

/* The largest share of the bound that an error of o, lse or row_max uses: for o of oracle_bound with this c, where half
 * an ulp of the output type is taken off both; for the others of 8 u (1 + max|score|) (contract A1, A3). Infinite where
 * one is NaN or infinite and the exact value is not, or the reverse. sentence: where that is. */
double outputs_judge(const attn_forward_args *args, double c, char *sentence, size_t size);

/* A hash of all memory from the lowest to the highest element of each input. */
uint64_t outputs_inputs_hash(const attn_forward_args *args);

#endif
