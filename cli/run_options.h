/*
 * run_options.h: the command line of `attn run`.
 */
#ifndef CLI_RUN_OPTIONS_H
#define CLI_RUN_OPTIONS_H

#include "args.h"

/* The tensors of a run: those of attn_forward_args, and from ARGS_TENSORS on the gradients'. */
enum { RUN_TENSORS = ARGS_TENSORS + ARGS_GRADIENTS };

/* The word for a tensor in files and messages. */
const char *run_name(int tensor);
bool run_is_output(int tensor);

typedef struct run_options {
    const char *input[RUN_TENSORS], *output[RUN_TENSORS]; /* specs (run_files.h); NULL: not given */
    attn_forward_args args;                               /* all but tensors */
    attn_context_config config;
    int32_t out_dtype;  /* 0: that of q */
    const char *layout; /* NULL: not given */
    bool bhsd, check, compare, json;
    bool backward; /* a gradient is asked for */
} run_options;

/* Exits on what makes no sense by itself. */
void run_parse(int argc, char **argv, run_options *options);

#endif
