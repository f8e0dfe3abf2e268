/*
 * config.h: the configuration of a training run. Two runs of the same configuration on the same
 * text give the same bits. The checkpoint keeps it. The table of its fields serves the command line
 * (options.c) and the checkpoint's comparison.
 */
#ifndef TRAIN_GPT_CONFIG_H
#define TRAIN_GPT_CONFIG_H

#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct config {
    int64_t layers, width, heads, context, batch, steps, seed;
    int64_t attention; /* enum attention_kind */
    double rate, dropout;
} config;

typedef struct config_field {
    const char *name; /* of the option */
    size_t offset;
    double least, most;
    char *type; /* the value's word in the help: 'N' counts, 'X' real numbers */
    const char *help;
} config_field;

enum { CONFIG_FIELDS = 9 }; /* all but attention, which is a word */
extern const config_field config_fields[CONFIG_FIELDS];
extern const config config_default;

double config_value(const config *c, const config_field *field);

/* Sets the field from text. Ends the program if that is not a number in range. */
void config_set(config *c, const config_field *field, const char *text);

/* Ends the program if fields contradict each other. */
void config_check(const config *c);

/* Writes the first field in which they differ into text, as "--width=128" of a. NULL if they are
 * equal. */
const char *config_difference(const config *a, const config *b, char text[64]);

#endif
