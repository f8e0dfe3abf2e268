/*
 * settle.h: results of inputs with infinities, before they are judged. Whether a sum with infinite
 * terms is infinite or NaN depends on weights that became 0 on the way (docs/numerics.md): a result
 * that is no finite number is taken for the exact one, if that is none either.
 */
#ifndef TESTS_HUNT_SETTLE_H
#define TESTS_HUNT_SETTLE_H

#include <attn/attn.h>

/* O, LSE and row_max; of the last two -infinity stays what it is, a row without keys. */
void settle_outputs(const attn_forward_args *args);

/* Gradients, which may be finite, too, where the exact ones are not: dS is 0 where P became 0. */
void settle_gradients(const attn_backward_args *args);

#endif
