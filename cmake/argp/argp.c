/*
 * argp.c: see argp.h.
 */
#include "argp.h"

#include <ctype.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OPTIONS = 128, COLUMN = 26 };

static int is_last(const struct argp_option *option)
{
    return option->name == NULL && option->doc == NULL && option->key == 0;
}

static error_t parse_rest(const struct argp *argp, struct argp_state *state)
{
    while (state->next < state->argc) {
        char *text = state->argv[state->next++];
        const error_t status = argp->parser(ARGP_KEY_ARG, text, state);
        if (status != 0) {
            return status;
        }
    }
    const error_t status = argp->parser(ARGP_KEY_END, NULL, state);
    return status == ARGP_ERR_UNKNOWN ? 0 : status;
}

error_t argp_parse(const struct argp *argp, int argc, char **argv, unsigned flags, int *index,
                   void *input)
{
    struct option longs[MOST_OPTIONS + 1] = {{0}};
    char shorts[2 * MOST_OPTIONS + 1] = "";
    struct argp_state state = {argc, argv, 1, input};
    size_t letters = 0, words = 0;
    for (const struct argp_option *o = argp->options; !is_last(o) && words < MOST_OPTIONS; o++) {
        if (o->name != NULL) {
            longs[words++] = (struct option){o->name, o->arg != NULL, NULL, o->key};
            if (o->key < 128 && isgraph(o->key)) {
                shorts[letters++] = (char)o->key;
                letters += o->arg != NULL ? (shorts[letters] = ':', 1u) : 0u;
            }
        }
    }
    opterr = !(flags & ARGP_NO_ERRS), optind = 1;
    for (int key; (key = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
        state.next = optind;
        error_t status = key == '?' ? ARGP_ERR_UNKNOWN : argp->parser(key, optarg, &state);
        if (status != 0) {
            (void)argp->parser(ARGP_KEY_ERROR, NULL, &state);
            if (!(flags & ARGP_NO_ERRS)) {
                argp_help(argp, stderr, 0, argv[0]);
                exit(64);
            }
            return status;
        }
    }
    state.next = optind;
    if (index != NULL) {
        *index = optind;
    }
    return parse_rest(argp, &state);
}

static void print_option(const struct argp_option *option, FILE *file)
{
    int width = option->key < 128 && isgraph(option->key) ? fprintf(file, "  -%c, ", option->key)
                                                          : fprintf(file, "      ");
    width += fprintf(file, "--%s%s%s", option->name, option->arg != NULL ? "=" : "",
                     option->arg != NULL ? option->arg : "");
    fprintf(file, "%*s%s\n", width < COLUMN ? COLUMN - width : 1, "",
            option->doc != NULL ? option->doc : "");
}

void argp_help(const struct argp *argp, FILE *file, unsigned flags, char *name)
{
    const char *doc = argp->doc != NULL ? argp->doc : "", *tail = strchr(doc, '\v');
    (void)flags;
    fprintf(file, "Usage: %s [OPTION...] %s\n%.*s\n\n", name,
            argp->args_doc != NULL ? argp->args_doc : "",
            tail != NULL ? (int)(tail - doc) : (int)strlen(doc), doc);
    for (const struct argp_option *o = argp->options; !is_last(o); o++) {
        if (o->name == NULL) {
            fprintf(file, "\n %s\n", o->doc);
        } else {
            print_option(o, file);
        }
    }
    if (tail != NULL) {
        fprintf(file, "\n%s\n", tail + 1);
    }
}

void argp_error(const struct argp_state *state, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "%s: ", state->argv[0]);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    exit(64);
}
