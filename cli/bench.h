/*
 * bench.h: what `attn bench` measured of one implementation on one problem: from bench.c to bench_report.c (text and
 * JSON) and plot.c.
 */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "problem.h"
#include "stats.h"
#include "worker.h"

enum { BENCH_MAX_SAMPLES = 32, BENCH_MAX_LINE = 16384 };

typedef struct bench_result {
    const char *implementation;
    const problem *problem;
    bool measured;
    char why[1024]; /* if not measured */
    int samples;
    double sample[BENCH_MAX_SAMPLES];
    stats_summary seconds;
    double gflops, peak_gflops, share; /* NaN: not known */
    double ratio;                      /* standard's time / libattn's; NaN unless both were measured */
    worker_report report;
} bench_result;

/* The results of one problem, of all implementations. */
void bench_print_text(const bench_result *results, int count);
void bench_print_json(const bench_result *results, int count);

/* Draws time and memory against N through gnuplot into path (.svg or .png); possible if there is a gnuplot and the file
 * can be written, to be asked before hours of measuring. False with a sentence in error. */
bool bench_plot_possible(const char *path, char *error, size_t size);
bool bench_plot(const bench_result *results, int count, const char *path, char *error, size_t size);

#endif
