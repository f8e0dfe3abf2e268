/*
 * plot_bars.h: a page of bars, problems side by side.
 */
#ifndef BENCH_PLOT_BARS_H
#define BENCH_PLOT_BARS_H

#include "bench_result.h"

#include <stdio.h>

/* Draws two rows of bars: the share of the ceiling of every implementation, and the factor by which
 * libattn is faster. The title is the page's. */
void plot_bars(FILE *gnuplot, const char *path, const bench_result *results, int count,
               const char *title);

#endif
