/*
 * bench_summary.h: means over all problems.
 */
#ifndef BENCH_SUMMARY_H
#define BENCH_SUMMARY_H

#include "bench_report.h"

/* For each type and implementation beside libattn. */
void bench_print_summary(enum bench_format format, const bench_result *results, int count);

#endif
