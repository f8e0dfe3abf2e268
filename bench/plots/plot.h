/*
 * plot.h: parts shared by the pages of `attn bench --plot`: plot.c (curves against N) and
 * plot_bars.c (problems side by side).
 */
#ifndef CLI_PLOT_H
#define CLI_PLOT_H

#include "bench.h"

#include <stdio.h>

enum { PLOT_COLOURS = 8 };
extern const char *const plot_colour[PLOT_COLOURS];

/* "set terminal" and "set output" for path; the size is that of an SVG, the title its <title>. */
void plot_start(FILE *gnuplot, const char *path, const char *title, int width, int height);

/* Draws a page of two rows of bars: the share of the ceiling of every implementation, and the
 * factor by which libattn is faster. The title is the page's. */
void plot_bars(FILE *gnuplot, const char *path, const bench_result *results, int count,
               const char *title);

#endif
