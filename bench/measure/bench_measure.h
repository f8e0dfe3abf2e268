/*
 * bench_measure.h: the measuring of a problem.
 */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include "bench_run.h"

/* Measures all implementations on problem `index` of the list and fills their results. */
void bench_measure(bench_run *run, int index);

#endif
