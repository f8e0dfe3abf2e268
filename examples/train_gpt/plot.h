/*
 * plot.h: the loss curve as a picture, drawn by gnuplot.
 */
#ifndef TRAIN_GPT_PLOT_H
#define TRAIN_GPT_PLOT_H

#include "train.h"

/* Draws training loss, validation loss and the entropy of single bytes against steps, as PNG.
 * Returns NULL, or the reason why not. */
const char *plot_losses(const gpt_trainer *trainer, const char *path);

#endif
