/*
 * bench_record.h: origin of results: machine, commit, command.
 */
#ifndef BENCH_RECORD_H
#define BENCH_RECORD_H

#include <stdint.h>

typedef struct bench_record {
    char machine[768], commit[256], command[4096];
} bench_record;

/* This machine, the commit of the build, and the command. */
void bench_record_fill(bench_record *record, int32_t device, int argc, char **argv);

#endif
