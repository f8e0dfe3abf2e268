/*
 * stats.h: a monotonic clock and the order statistics of a few samples.
 */
#ifndef SUPPORT_STATS_H
#define SUPPORT_STATS_H

/* Seconds of the monotonic clock. */
double stats_now(void);

/* Seconds of processor time that this process has used. */
double stats_used(void);

/* Seconds that the living threads of this process have waited for a core so far, all together
 * (Linux's schedstat); 0 if the system does not count them. */
double stats_waited(void);

typedef struct stats_summary {
    double median, q1, q3; /* quartiles, linearly interpolated */
} stats_summary;

/* Sorts samples[count] in place; all NaN if count is 0. */
stats_summary stats_of(double *samples, int count);

#endif
