/*
 * cli.h: parts that the sub-commands of `attn` share: exit statuses, one-line errors, option
 * parsing, words for quantities.
 */
#ifndef SUPPORT_CONSOLE_CLI_H
#define SUPPORT_CONSOLE_CLI_H

#include <argp.h>
#include <attn/attn.h>
#include <cjson/cJSON.h>
#include <stdbool.h>

#include "problem.h"

enum { CLI_OK = 0, CLI_CHECK_FAILED = 1, CLI_USAGE = 2, CLI_INTERNAL = 3 };

/* Writes "attn: sentence" to stderr. Returns status, for a return statement or exit. */
int cli_error(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* cli_error for an attn_status that is not ATTN_OK: CLI_USAGE if the arguments are to blame, else
 * CLI_INTERNAL. */
int cli_status_error(attn_status status);

/* Calls argp_parse, with errors as one line and CLI_USAGE. Parsers exit by themselves on values
 * that make no sense, and pass unknown keys to cli_parse_other. */
void cli_parse(const struct argp *argp, int argc, char **argv, void *input);
error_t cli_parse_other(int key, const char *text, const struct argp_state *state);

/* Numbers in options. Nonsense exits with a sentence that names the option. */
int64_t cli_integer(const char *option, const char *text, int64_t least, int64_t most);
double cli_real(const char *option, const char *text, double least, double most);

/* --device=cpu or cuda, as attn_device; exits on other names. */
int32_t cli_device(const char *name);

/* A context for GPU 0. */
attn_status cli_gpu_context(attn_context **context);

/* "12.3 MiB", "4.56 ms", written into the caller's buffer, which they return. */
typedef char cli_text[24];
const char *cli_bytes(cli_text text, double bytes);
const char *cli_seconds(cli_text text, double seconds);

/* Bytes of memory available without swapping; the system's cache of files is part of them. */
double cli_free_memory(void);

/* Prints the object on one line of stdout, flushes, and frees it. */
void cli_print_json(cJSON *object);

/* Problems in the order of the command line. */
typedef struct cli_list {
    problem_spec *problems;
    int count;
} cli_list;

/* Adds the problems of an argument: a word with '=' is a problem line, any other the name of a file
 * of such lines. Exits with CLI_USAGE if it cannot be read. */
void cli_add_problems(cli_list *list, const char *argument);

/* Exits with CLI_USAGE if a problem's tensors are larger than the free memory: to fill them would
 * take that of other processes. */
void cli_refuse_large(const cli_list *list);

#endif
