/*
 * style.c: see style.h.
 */
#include "style.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

const char *cli_colour(enum cli_colour colour)
{
    static const char *const escapes[] = {[CLI_PLAIN] = "\033[0m",
                                          [CLI_LABEL] = "\033[1m",
                                          [CLI_GOOD] = "\033[32m",
                                          [CLI_BAD] = "\033[1;31m"};
    const char *no_colour = getenv("NO_COLOR"), *terminal = getenv("TERM");
    bool coloured = isatty(STDOUT_FILENO) && (no_colour == NULL || no_colour[0] == '\0') &&
                    terminal != NULL && strcmp(terminal, "dumb") != 0;
    return coloured ? escapes[colour] : "";
}

/* Columns of the terminal; 0: standard output is none. */
static size_t terminal_width(void)
{
    struct winsize size;
    if (!isatty(STDOUT_FILENO)) {
        return 0;
    }
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* Prints text whose first line begins at a column; lines break at blanks. */
static void print_broken(const char *text, size_t column, size_t width)
{
    size_t room = width > column + 20 ? width - column : 0;
    while (room > 0 && strlen(text) > room) {
        size_t length = room;
        while (length > 0 && text[length] != ' ') {
            length--;
        }
        if (length == 0) {
            break; /* a word that is too long */
        }
        printf("%.*s\n%*s", (int)length, text, (int)column, "");
        text += length + strspn(text + length, " ");
    }
    puts(text);
}

void cli_fact(const char *label, const char *format, ...)
{
    char text[2048];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    printf("%s%s%s", cli_colour(CLI_LABEL), label, cli_colour(CLI_PLAIN));
    print_broken(text, strlen(label), terminal_width());
}

void cli_print_verdict(bool ok)
{
    printf("%s%s%s", cli_colour(ok ? CLI_GOOD : CLI_BAD), ok ? "OK" : "FAILED",
           cli_colour(CLI_PLAIN));
}
