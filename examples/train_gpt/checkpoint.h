/*
 * checkpoint.h: a training run in a file, from which it continues with the same bits. The file is
 * replaced as a whole: whenever the program or the machine stops, the old one or the new one is
 * there.
 */
#ifndef TRAIN_GPT_CHECKPOINT_H
#define TRAIN_GPT_CHECKPOINT_H

#include <stdbool.h>

#include "trainer.h"

/* Writes the file. Ends the program on failure. */
void checkpoint_save(const char *path, const gpt_trainer *trainer);

/* Reads the file. False: there is none. Ends the program with a sentence if it is damaged, or of
 * another configuration or text than t, which is then unchanged. */
bool checkpoint_load(const char *path, gpt_trainer *trainer);

#endif
