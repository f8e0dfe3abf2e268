/*
 * plot_page.c: see plot_page.h.
 */
#include "plot_page.h"

#include <stdbool.h>
#include <string.h>

const char *const plot_colour[PLOT_COLOURS] = {"#0b6e99", "#c2410c", "#4d7c0f", "#7e22ce",
                                               "#0f766e", "#be123c", "#a16207", "#475569"};

/* An SVG's <title>, which takes letters, digits and underscores only. */
static void send_name(FILE *gnuplot, const char *title)
{
    fputs(" name '", gnuplot);
    for (const char *c = title; *c != '\0'; c++) {
        fputc((*c | 32) >= 'a' && (*c | 32) <= 'z' ? *c
              : *c >= '0' && *c <= '9'             ? *c
                                                   : '_',
              gnuplot);
    }
    fputs("'", gnuplot);
}

void plot_start(FILE *gnuplot, const char *path, const char *title, int width, int height)
{
    const char *ending = strrchr(path, '.');
    const bool svg = ending != NULL && strcmp(ending, ".svg") == 0;
    fprintf(gnuplot, "set terminal %s noenhanced size %d,%d font '%s' background rgb 'white'",
            svg ? "svg" : "pngcairo", svg ? width : width * 3 / 2, svg ? height : height * 3 / 2,
            svg ? "Helvetica,15" : "Sans,15");
    if (svg) {
        send_name(gnuplot, title);
    }
    fputs("\nset output '", gnuplot);
    /* a string in which gnuplot takes nothing but quotes for special */
    for (const char *c = path; *c != '\0'; c++) {
        fputs(*c == '\'' ? "''" : (const char[]){*c, '\0'}, gnuplot);
    }
    fputs("'\n", gnuplot);
}
