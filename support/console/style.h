/*
 * style.h: words on a terminal: colours, and long lines broken at its width. Elsewhere, with
 * NO_COLOR set (no-color.org) or TERM=dumb, plain text.
 */
#ifndef SUPPORT_CONSOLE_STYLE_H
#define SUPPORT_CONSOLE_STYLE_H

#include <stdbool.h>

enum cli_colour { CLI_PLAIN, CLI_LABEL, CLI_GOOD, CLI_BAD };

/* The escape sequence for standard output, or "". */
const char *cli_colour(enum cli_colour colour);

/* Prints a label, blanks behind it included, and text; on a terminal the lines after the first
 * begin below the text. */
void cli_fact(const char *label, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "OK" or "FAILED". */
void cli_print_verdict(bool ok);

#endif
