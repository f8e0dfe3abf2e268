/*
 * trainer.h: the state of a training run (train.h), which a checkpoint keeps (checkpoint.h).
 */
#ifndef TRAIN_GPT_TRAINER_H
#define TRAIN_GPT_TRAINER_H

#include "adamw.h"
#include "config.h"
#include "model.h"
#include "text.h"

/* Everything that a checkpoint keeps: config, parameters, moments, step, random state and
 * losses. */
typedef struct gpt_trainer {
    config config;
    const text *text;
    gpt_model *model;
    adamw adamw;
    uint64_t random; /* draws the batches */
    int64_t step;    /* steps done so far */
    double *losses;  /* [steps]: of each step's batch before its update */
    /* [steps + 1]: validation loss after so many steps, NaN where it was not measured */
    double *valid;
    uint8_t *input, *target;
    double seconds; /* of trainer_run */
} gpt_trainer;

#endif
