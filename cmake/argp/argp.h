/*
 * argp.h: stands in for glibc's header where a system has none: the part of it that the programs
 * here use, over getopt_long (argp.c).
 */
#ifndef STAND_IN_ARGP_H
#define STAND_IN_ARGP_H

#include <stdio.h>

typedef int error_t;

struct argp_option {
    const char *name;
    int key;
    const char *arg;
    int flags;
    const char *doc;
    int group;
};

struct argp_state {
    int argc;
    char **argv;
    int next;
    void *input;
};

struct argp {
    const struct argp_option *options;
    error_t (*parser)(int key, char *text, struct argp_state *state);
    const char *args_doc, *doc; /* "\v" in doc: what follows comes behind the options */
    const void *children, *help_filter, *argp_domain;
};

enum { ARGP_KEY_ARG = 0, ARGP_KEY_END = 0x1000001, ARGP_KEY_ERROR = 0x1000005 };
enum { ARGP_ERR_UNKNOWN = 7, ARGP_NO_ERRS = 2, ARGP_HELP_STD_HELP = 1, ARGP_HELP_EXIT_OK = 2 };

/* Options first, then arguments, then ARGP_KEY_END. An unknown option: ARGP_KEY_ERROR, and a status
 * that is not 0; a sentence and an exit without ARGP_NO_ERRS. */
error_t argp_parse(const struct argp *argp, int argc, char **argv, unsigned flags, int *index,
                   void *input);
void argp_help(const struct argp *argp, FILE *file, unsigned flags, char *name);
void argp_error(const struct argp_state *state, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
