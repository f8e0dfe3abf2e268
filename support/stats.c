/*
 * stats.c: see stats.h.
 */
#include "stats.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double stats_now(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

double stats_used(void)
{
    return seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

double stats_waited(void)
{
    char path[64];
    double sum = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks != NULL && (task = readdir(tasks)) != NULL;) {
        double nanoseconds;
        snprintf(path, sizeof path, "/proc/self/task/%.20s/schedstat", task->d_name);
        FILE *file = fopen(path, "r");
        if (file != NULL) {
            sum += fscanf(file, "%*f %lf", &nanoseconds) == 1 ? nanoseconds * 1e-9 : 0;
            fclose(file);
        }
    }
    if (tasks != NULL) {
        closedir(tasks);
    }
    return sum;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* samples sorted, 0 <= share <= 1 */
static double quantile(const double *samples, int count, double share)
{
    double at = share * (count - 1);
    int below = (int)at, above = below + 1 < count ? below + 1 : below;
    return samples[below] + (at - below) * (samples[above] - samples[below]);
}

stats_summary stats_of(double *samples, int count)
{
    if (count <= 0) {
        return (stats_summary){NAN, NAN, NAN};
    }
    qsort(samples, (size_t)count, sizeof samples[0], by_value);
    return (stats_summary){quantile(samples, count, 0.5), quantile(samples, count, 0.25),
                           quantile(samples, count, 0.75)};
}
