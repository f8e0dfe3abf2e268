/*
 * bench_read.h: results of an earlier run.
 */
#ifndef BENCH_READ_H
#define BENCH_READ_H

#include "bench_record.h"
#include "bench_run.h"

/* Reads the output of --csv; path "-": stdin. Fills the record, and the run's list, device, use and
 * results. Exits if it cannot be read. */
void bench_read(bench_run *run, const char *path, bench_record *record);

#endif
