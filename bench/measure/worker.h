/*
 * worker.h: one implementation of attention at work on one problem, in a process of its own: its
 * peak memory is its own, and a crash or the kernel's out-of-memory killer ends only it. The parent
 * asks for samples in turn, so several workers can be measured alternately.
 */
#ifndef BENCH_WORKER_H
#define BENCH_WORKER_H

#include "problem.h"

#include <math.h>
#include <stdio.h>
#include <sys/types.h>

/* A refusal is no error: this implementation cannot do the problem, another may. */
enum worker_failure { WORKER_FINE, WORKER_REFUSED, WORKER_BAD_PROBLEM, WORKER_FAILED };

typedef struct bench_worker {
    const char *implementation; /* "libattn", "standard", or a peer of bench/peers/peers.py */
    pid_t pid;                  /* 0: not running */
    int to, from;
    enum worker_failure failure;
    char why[1024]; /* one sentence, after a function returned false */
} bench_worker;

/* Times of a call, means of several calls. */
typedef struct worker_times {
    double seconds;
    /* waiting of threads for a core meanwhile; 0 for one thread, which is timed by its processor
     * time */
    double waited;
    double one_by_one; /* a GPU's: seconds of calls that are enqueued one by one */
} worker_times;

/* Ceilings of the machine, of operations in GFLOP/s; NaN: unknown. */
typedef struct worker_peaks {
    double gflops; /* multiply-adds in registers; a GPU's: a large product of matrices */
    double tiles;  /* products of AMX tiles */
    double read;   /* GB/s of reading K, of a step of decoding (problem_is_decode) */
} worker_peaks;

typedef struct worker_report {
    char kernel[48];
    int32_t threads;
    int32_t tile_products;  /* attn_plan.tile_products; 0 for all but libattn */
    double workspace_bytes; /* beside Q, K, V and O; 0: unknown (a peer) */
    double peak_rss_bytes;  /* of the process, before the error was measured */
    double max_error;       /* errors.relative */
    double c;               /* errors.c */
    int64_t rows;           /* errors.rows */
    char not_compared[48];  /* reason why O was not compared with float64 (errors unknown), or "" */
} worker_report;

/* Starts the process, makes the tensors and calls the implementation once. python is the
 * interpreter for peers. False: see why. */
bool worker_start(bench_worker *worker, const char *implementation, const char *python,
                  const problem_spec *problem);

/* Times `repeats` calls in a row. */
bool worker_sample(bench_worker *worker, int64_t repeats, worker_times *times);

/* Measures the peaks with the threads and the vectors of libattn on this problem, in 20 ms. */
void worker_peak(bench_worker *worker, const char *python, worker_peaks *peaks);

/* Measures the error and ends the process. */
bool worker_finish(bench_worker *worker, worker_report *report);

/* Notes why the results of a peer with dropout are not compared. */
static inline void worker_drops_alone(worker_report *report)
{
    report->max_error = report->c = NAN;
    snprintf(report->not_compared, sizeof report->not_compared, "it drops other positions");
}

/* Ends the process at once; harmless if it has ended. */
void worker_stop(bench_worker *worker);

#endif
