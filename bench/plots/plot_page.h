/*
 * plot_page.h: parts shared by the pages of `attn bench --plot`.
 */
#ifndef BENCH_PLOT_PAGE_H
#define BENCH_PLOT_PAGE_H

#include <stdio.h>

enum { PLOT_COLOURS = 8 };
extern const char *const plot_colour[PLOT_COLOURS];

/* "set terminal" and "set output" for path; the size is that of an SVG, the title its <title>. */
void plot_start(FILE *gnuplot, const char *path, const char *title, int width, int height);

#endif
