/*
 * train.h: a training run: one step of it, and the loop with validation and progress.
 */
#ifndef TRAIN_GPT_TRAIN_H
#define TRAIN_GPT_TRAIN_H

#include <stdio.h>

#include "trainer.h"

gpt_trainer *trainer_new(const device *on, const config *c, const text *t);
void trainer_delete(gpt_trainer *trainer);

/* Takes one step and returns its loss. Ends the program if that is not finite. */
double trainer_step(gpt_trainer *trainer);

/* The mean loss over at most 32 windows, evenly spread over the validation part. */
double trainer_validate(gpt_trainer *trainer);

/* Trains to the last step, with a line on `out` for each validation. Writes the state to the file
 * `checkpoint` every `interval` seconds and at the end; NULL: nowhere. */
void trainer_run(gpt_trainer *trainer, FILE *out, const char *checkpoint, double interval);

/* Seconds of a clock that only goes forward. */
double seconds_now(void);

#endif
