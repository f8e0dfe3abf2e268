/*
 * plot.h: `attn bench --plot`.
 */
#ifndef BENCH_PLOT_H
#define BENCH_PLOT_H

#include "bench_record.h"
#include "bench_result.h"

/* Draws time and memory against N, with peers shares and ratios, through gnuplot into path (.svg or
 * .png). bench_plot_possible tells before hours of measuring whether the name has such an
 * ending, the file can be written and there is a gnuplot. False with a sentence in error. */
bool bench_plot_possible(const char *path, char *error, size_t size);
bool bench_plot(const bench_result *results, int count, const bench_record *record,
                const char *path, char *error, size_t size);

#endif
