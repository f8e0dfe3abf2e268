/*
 * checkpoint.h: a training run in a file, from which it continues with the same bits. The file is
 * replaced as a whole: whenever the program or the machine stops, there is the old one or the new
 * one.
 */
#ifndef TRAIN_GPT_CHECKPOINT_H
#define TRAIN_GPT_CHECKPOINT_H

#include "train.h"

/* Ends the program if it cannot be written. */
void checkpoint_save(const char *path, const trainer *t);

/* False: there is no such file. Ends the program with a sentence if it is damaged, or of another
 * configuration or text than t, which is unchanged then. */
bool checkpoint_load(const char *path, trainer *t);

#endif
