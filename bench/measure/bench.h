/*
 * bench.h: results of `attn bench`, one implementation on one problem each, between bench.c,
 * bench_report.c (text, JSON and CSV), bench_summary.c and plot.c; and the functions that bench.c
 * needs of a device's implementations.
 */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "cli.h"
#include "stats.h"
#include "worker.h"

enum { BENCH_MAX_SAMPLES = 32, BENCH_MAX_LINE = 16384 };

typedef struct bench_result {
    const char *implementation;
    const problem *problem;
    int32_t device; /* attn_device */
    bool measured;
    char why[1024]; /* if not measured */
    int samples;
    stats_summary seconds;
    double one_by_one, one_by_one_ratio; /* a GPU's: the median, and its ratio */
    double gflops, peak_gflops, share;   /* NaN: not known */
    double amx_peak_gflops, amx_share;   /* of tile products; NaN on machines without them */
    /* the largest share of a sample's time that an implementation's threads waited for a core */
    double waited;
    double ratio; /* its time / libattn's, for libattn itself the least of these; NaN: unknown */
    worker_report report;
} bench_result;

/* The implementations of a device, called as worker.h says of the CPU's; the first is libattn. */
enum { BENCH_IMPLEMENTATIONS = 5 };
typedef struct bench_device {
    const char *names[BENCH_IMPLEMENTATIONS]; /* NULL behind the last */
    bool by_default[BENCH_IMPLEMENTATIONS];
    double min_time; /* defaults: seconds of a sample, number of samples */
    int rounds;
    bool (*start)(worker *w, const char *implementation, const char *python, const problem *p);
    bool (*sample)(worker *w, int64_t repeats, worker_times *times);
    void (*peak)(worker *w, const char *python, worker_peaks *peaks);
    bool (*finish)(worker *w, worker_report *report);
    void (*stop)(worker *w);
} bench_device;

const bench_device *bench_device_of(int32_t device);

/* Index of a name in on->names; -1: unknown. */
int bench_find(const bench_device *on, const char *name);

/* GPU 0. bench_gpu_open comes first; its errors are those of attn_context_create. */
extern const bench_device bench_gpu;
attn_status bench_gpu_open(void);

enum bench_format { BENCH_TEXT, BENCH_JSON, BENCH_CSV };

typedef struct bench {
    cli_list list;
    int32_t device; /* attn_device */
    const bench_device *on;
    const char *names; /* as given with --impl, or NULL */
    bool peers, use[BENCH_IMPLEMENTATIONS];
    enum bench_format format;
    double min_time; /* seconds of a sample */
    int rounds;      /* samples of calls that take less than a second */
    const char *python, *plot, *from;
    bench_result *results; /* [count * BENCH_IMPLEMENTATIONS] */
    int status;
} bench;

/* Measures all implementations on problem `index` of the list and fills their results. */
void bench_measure(bench *b, int index);

/* True if O is nowhere near attention, even for 16-bit numbers: something else was computed. */
bool bench_is_wrong(const bench_result *result);

/* The numbers of a result under their names in JSON and CSV: the n-th name, "" if the device lacks
 * that number, NULL beyond the last. */
const char *bench_column(int n, int32_t device);
double bench_get(const bench_result *r, int n);
void bench_set(bench_result *r, int n, double value);

/* Origin of results: this machine, the commit of the build, and the command. */
typedef struct bench_record {
    char machine[768], commit[256], command[4096];
} bench_record;
void bench_record_fill(bench_record *record, int32_t device, int argc, char **argv);

/* Reads an earlier run from the output of --csv; path "-": stdin. Fills the record, and b's list,
 * device, use and results. Exits if it cannot be read. */
void bench_read(bench *b, const char *path, bench_record *record);

/* Print the record; the results of one problem, of all implementations; and means over all
 * problems, for each type and implementation beside libattn. */
void bench_print_record(enum bench_format format, const bench_record *record);
void bench_print(enum bench_format format, const bench_result *results, int count);
void bench_print_summary(enum bench_format format, const bench_result *results, int count);

/* Draws time and memory against N, with peers shares and ratios, through gnuplot into path (.svg or
 * .png). bench_plot_possible tells before hours of measuring whether there is a gnuplot and the
 * file can be written. False with a sentence in error. */
bool bench_plot_possible(const char *path, char *error, size_t size);
bool bench_plot(const bench_result *results, int count, const bench_record *record,
                const char *path, char *error, size_t size);

#endif
