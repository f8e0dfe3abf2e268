/*
 * bench_result.h: the result of one implementation on one problem, and its numbers by name.
 */
#ifndef BENCH_RESULT_H
#define BENCH_RESULT_H

#include "problem.h"
#include "stats.h"
#include "worker.h"

enum { BENCH_MAX_SAMPLES = 32, BENCH_MAX_LINE = 16384 };

typedef struct bench_result {
    const char *implementation;
    const problem_spec *problem;
    int32_t device; /* attn_device */
    bool measured;
    char why[1024]; /* if not measured */
    int samples;
    stats_summary seconds;
    double one_by_one, one_by_one_ratio; /* a GPU's: the median, and its ratio */
    double gflops, peak_gflops, share;   /* NaN: not known */
    double amx_peak_gflops, amx_share;   /* of tile products; NaN on machines without them */
    /* GB/s of K and V in a step of decoding, of reading K and V, and the share; NaN: no such
     * step */
    double cache_rate, read_rate, cache_share;
    /* the largest share of a sample's time that an implementation's threads waited for a core */
    double waited;
    double ratio; /* its time / libattn's, for libattn itself the least of these; NaN: unknown */
    worker_report report;
} bench_result;

/* True if O is nowhere near attention, even for 16-bit numbers: something else was computed. */
bool bench_is_wrong(const bench_result *result);

/* The numbers of a result under their names in JSON and CSV: the n-th name, "" if the device lacks
 * that number, NULL beyond the last. */
const char *bench_column(int n, int32_t device);
double bench_get(const bench_result *result, int n);
void bench_set(bench_result *result, int n, double value);

#endif
