/*
 * bench.h: what `attn bench` measured of one implementation on one problem: from bench.c to bench_report.c (text, JSON
 * and CSV), bench_summary.c and plot.c.
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
    stats_summary seconds;
    double gflops, peak_gflops, share; /* NaN: not known */
    double amx_peak_gflops, amx_share; /* of tile products; NaN where there are none */
    double waited; /* the largest share of a sample's time that an implementation's threads waited for a core */
    double ratio;  /* its time / libattn's, for libattn itself the least of these; NaN: not known */
    worker_report report;
} bench_result;

/* True if O is nowhere near attention, even of 16-bit numbers: something else was computed. */
bool bench_is_wrong(const bench_result *result);

/* The machine, the commit that was built and the command; then the results of one problem, of all implementations; at
 * the end means over all problems, for each type and implementation beside libattn. */
enum bench_format { BENCH_TEXT, BENCH_JSON, BENCH_CSV };
void bench_print_record(enum bench_format format, int argc, char **argv);
void bench_print(enum bench_format format, const bench_result *results, int count);
void bench_print_summary(enum bench_format format, const bench_result *results, int count);

/* Draws time and memory against N, with peers shares and ratios, through gnuplot into path (.svg or .png); possible
 * if there is a gnuplot and the file can be written, to be asked before hours of measuring. False with a sentence in
 * error. */
bool bench_plot_possible(const char *path, char *error, size_t size);
bool bench_plot(const bench_result *results, int count, const char *path, char *error, size_t size);

#endif
