/*
 * bench_report.h: results as an aligned table, as JSON objects or as CSV.
 */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "bench_record.h"
#include "bench_result.h"

enum bench_format { BENCH_TEXT, BENCH_JSON, BENCH_CSV };

void bench_print_record(enum bench_format format, const bench_record *record);

/* The results of one problem, of all implementations. */
void bench_print(enum bench_format format, const bench_result *results, int count);

#endif
