/*
 * report.h: the report of a run, as text and as one JSON object.
 */
#ifndef TRAIN_GPT_REPORT_H
#define TRAIN_GPT_REPORT_H

#include <cjson/cJSON.h>

#include "options.h"
#include "train.h"

/* Printed before training: the text, the model, the threads. */
void report_start(const gpt_trainer *trainer, FILE *out);

/* Printed after it; sample is a string. */
void report_end(const gpt_trainer *trainer, const char *sample, FILE *out);
void report_json(const gpt_trainer *trainer, const char *sample);

/* Prints the object on one line of stdout and deletes it. */
void report_print_json(cJSON *object);

#endif
