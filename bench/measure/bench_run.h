/*
 * bench_run.h: problems, how they are measured, and the results.
 */
#ifndef BENCH_RUN_H
#define BENCH_RUN_H

#include "bench_device.h"
#include "bench_result.h"
#include "cli.h"

typedef struct bench_run {
    cli_list list;
    int32_t device; /* attn_device */
    const bench_device *on;
    bool use[BENCH_IMPLEMENTATIONS];
    double min_time; /* seconds of a sample */
    int rounds;      /* samples of calls that take less than a second */
    const char *python;
    bench_result *results; /* [list.count * BENCH_IMPLEMENTATIONS] */
    int status;            /* exit status so far */
} bench_run;

#endif
