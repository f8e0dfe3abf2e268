/*
 * adamw.h: AdamW (Loshchilov & Hutter, arXiv 1711.05101) over the parameter array of a model, with
 * the gradient's norm clipped to 1 before.
 */
#ifndef TRAIN_GPT_ADAMW_H
#define TRAIN_GPT_ADAMW_H

#include <stdint.h>

#include "model.h"

typedef struct adamw {
    const device *on;
    int64_t count;
    real *mean, *square; /* running moments of the gradient, an element per parameter */
} adamw;

adamw adamw_new(const device *on, int64_t count);
void adamw_free(adamw *o);

/* Takes step number `step`, from 1. Returns the gradient's norm before clipping. */
double adamw_step(adamw *o, gpt_model *model, int64_t step, double rate);

/* Warm-up over a twentieth of all steps, then half a cosine from `highest` down to a tenth of it.
 * step from 1. */
double adamw_rate(double highest, int64_t step, int64_t steps);

#endif
