/*
 * generate.h: text from a trained model.
 */
#ifndef TRAIN_GPT_GENERATE_H
#define TRAIN_GPT_GENERATE_H

#include "model.h"

/* text[0 .. filled) is the beginning, at least one byte. Samples the bytes up to `end`, each from
 * the model's probabilities to the power of 1 / temperature, with at most m->context bytes before
 * it in view. */
void generate(gpt_model *model, uint8_t *text, int filled, int end, double temperature,
              uint64_t seed);

/* Replaces bytes that a terminal would not show as text by '?'. */
void make_printable(uint8_t *text, int count);

#endif
