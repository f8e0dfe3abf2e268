/*
 * plot.h: what the pages of `attn bench --plot` share: plot.c (curves against N) and plot_bars.c
 * (problems side by side).
 */
#ifndef CLI_PLOT_H
#define CLI_PLOT_H

#include "bench.h"

#include <stdio.h>

enum { PLOT_COLOURS = 8 };
extern const char *const plot_colour[PLOT_COLOURS];

/* "set terminal" and "set output" for path; size as "width,height" of an SVG. */
void plot_start(FILE *gnuplot, const char *path, int width, int height);

/* A page of bars, two rows of them: the share of the ceiling of everyone, and how many times faster
 * libattn is. The title is the page's. */
void plot_bars(FILE *gnuplot, const char *path, const bench_result *results, int count,
               const char *title);

#endif
