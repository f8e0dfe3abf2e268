/*
 * options.h: the command line of train_gpt.
 */
#ifndef TRAIN_GPT_OPTIONS_H
#define TRAIN_GPT_OPTIONS_H

#include <stdbool.h>

#include "config.h"
#include "device.h"

enum { MAX_PROMPTS = 64 };

typedef struct options {
    config config;
    const device *on;
    char *const *texts; /* files and directories */
    int text_count;
    const char *out;    /* the folder for checkpoint and picture */
    const char *prefix; /* of all prompts, with --generate; NULL: of the validation text */
    const char *prompts[MAX_PROMPTS]; /* the first one begins the sample */
    int prompt_count;
    int sample;       /* bytes of the sample; negative with --generate: as the context allows */
    int threads;      /* 0: all cores */
    int save_seconds; /* between two checkpoints; 0: after every step */
    bool fresh, json, compare, generate;
} options;

/* Ends the program with a sentence if the command line makes no sense. */
options options_parse(int argc, char **argv);

#endif
