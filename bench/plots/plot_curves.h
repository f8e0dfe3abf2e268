/*
 * plot_curves.h: a page of curves, time and memory against the sequence length.
 */
#ifndef BENCH_PLOT_CURVES_H
#define BENCH_PLOT_CURVES_H

#include "bench_result.h"

#include <stdio.h>

/* Problems that differ in length alone are one curve per implementation. */
void plot_curves(FILE *gnuplot, const char *path, const bench_result *results, int count,
                 const char *title);

#endif
