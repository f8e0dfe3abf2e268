/*
 * inputs.h: deterministic values for the tensors of a problem. Every element is a function of
 * (kind, seed, tensor, index) alone, so values do not depend on layout, order or threads.
 */
#ifndef SUPPORT_INPUTS_H
#define SUPPORT_INPUTS_H

#include <attn/attn.h>
#include <stdbool.h>

/* The tensor's number: part of the counter, and from the bias on the kind of value as well. */
enum inputs_tensor {
    INPUTS_Q,
    INPUTS_K,
    INPUTS_V,
    INPUTS_BIAS,
    INPUTS_MASK,
    INPUTS_SLOPES,
    INPUTS_SINKS,
    INPUTS_GRAD_O,
    INPUTS_GRAD_LSE,
    INPUTS_K_SCALE,
    INPUTS_V_SCALE,
    INPUTS_K_SHIFT,
    INPUTS_V_SHIFT
};

/* 64 random bits; the same arguments always give the same bits. */
uint64_t inputs_bits(uint64_t seed, int tensor, int64_t index);

/* N(0, 1) from 64 random bits; never beyond 6.8. */
double inputs_normal(uint64_t bits);

/* Element `index` of Q, K or V for an enum problem_inputs:
 *   normal   N(0, 1)
 *   outlier  N(0, 1) + N(0, 100) Bernoulli(0.001), variance 100 (FlashAttention-3,
 *            arXiv 2407.08608, table 3)
 *   uniform  [-1, 1); scales of V as those of K, none of them far from the others
 *   large    Q and K 20 N(0, 1), so that scores reach the thousands with the default scale;
 *            V N(0, 1)
 *   equal    Q and K 0.5 everywhere, so that all scores are equal; V N(0, 1)
 *   positive Q, K, V and dO uniform in [0, 1)
 *   offset   Q and K N(0, 1); V and dO 1 + 0.1 N(0, 1)
 *   rising   normal, with sizes of K that grow along the keys
 *   even     Q and K 0.5 everywhere; V and dO uniform in [1, 2)
 *   wild     by tensor, from the seed: 2^e (offset + spread N(0, 1)), e as far as products of the
 *            tensors stay in the type (inputs_wild); a constant where spread is 0
 * Sums of the last four may grow with N where those of zero mean cancel. */
double inputs_value(int kind, uint64_t seed, int tensor, int64_t index);
double inputs_wild(int32_t dtype, uint64_t seed, int tensor, int64_t index);

/* Writes one element, rounded to the tensor's dtype. */
void inputs_store(const attn_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3,
                  double value);

/* Writes a NaN, or an infinity of either sign, into one in n elements, in places that depend on the
 * seed. */
void inputs_sow(const attn_tensor *t, int64_t n, uint64_t seed, int tensor, bool infinite);

/* Writes all elements of a tensor. Q, K, V: inputs_value. Bias: N(0, 1), one in 16 is -inf. Mask:
 * three in four true; one row in 16 false throughout if it has several rows. Slopes: 2^(-8 (h + 1)
 * / H) (b + 1). Sinks, gradients: N(0, 1). K and V of codes: inputs_value times codes_spread, and
 * their scales, whose kind is the type of the codes, (0.5 + u) / codes_spread, one of V in 16 times
 * 2^-10 to 2^10, as keys of small values have them; shifts 0.2 N(0, 1). On an axis of stride 0 the
 * elements of index 0 count. */
void inputs_fill(const attn_tensor *t, int kind, uint64_t seed, int tensor);

#endif
