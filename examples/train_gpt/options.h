/*
 * options.h: the command line of train_gpt.
 */
#ifndef TRAIN_GPT_OPTIONS_H
#define TRAIN_GPT_OPTIONS_H

#include <stdbool.h>

#include "config.h"

typedef struct options {
    config config;
    char *const *texts; /* files and directories */
    int text_count;
    const char *out;    /* the folder for checkpoint and picture */
    const char *prompt; /* the sample begins with it */
    int sample;         /* bytes of the sample */
    int threads;        /* 0: all cores */
    int save_seconds;   /* between two checkpoints; 0: after every step */
    bool fresh, json, compare;
} options;

/* Ends the program with a sentence if the command line makes no sense. */
options options_parse(int argc, char **argv);

#endif
