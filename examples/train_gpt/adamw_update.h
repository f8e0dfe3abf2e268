/*
 * adamw_update.h: a step of AdamW on an array of parameters, on the CPU. Over a model: adamw.h.
 */
#ifndef TRAIN_GPT_ADAMW_UPDATE_H
#define TRAIN_GPT_ADAMW_UPDATE_H

#include <stdint.h>

#include "real.h"

/* One step's numbers for a tensor: factors of the gradient, of moments without their bias, of the
 * step and of the parameter. */
typedef struct adamw_rule {
    real clip, unbias1, unbias2, rate, keep;
    real mean_decay, square_decay, epsilon;
} adamw_rule;

/* The square root of the sum of squares. */
double magnitude(int64_t count, const real *x);

void adamw_update(int64_t count, const adamw_rule *rule, const real *gradient, real *mean,
                  real *square, real *parameter);

#endif
