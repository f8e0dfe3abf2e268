/*
 * bench_device.h: the implementations of a device as the measuring loop sees them.
 */
#ifndef BENCH_DEVICE_H
#define BENCH_DEVICE_H

#include "worker.h"

/* Called as worker.h says of the CPU's; the first is libattn. */
enum { BENCH_IMPLEMENTATIONS = 7 };
typedef struct bench_device {
    const char *names[BENCH_IMPLEMENTATIONS]; /* NULL behind the last */
    bool by_default[BENCH_IMPLEMENTATIONS];
    bool binding[BENCH_IMPLEMENTATIONS]; /* libattn by another way in: no peer of its */
    double min_time;                     /* defaults: seconds of a sample, number of samples */
    int rounds;
    bool (*start)(bench_worker *w, const char *implementation, const char *python,
                  const problem_spec *p);
    bool (*sample)(bench_worker *w, int64_t repeats, worker_times *times);
    void (*peak)(bench_worker *w, const char *python, worker_peaks *peaks);
    bool (*finish)(bench_worker *w, worker_report *report);
    void (*stop)(bench_worker *w);
} bench_device;

#endif
