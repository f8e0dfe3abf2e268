/*
 * bench_result.c: see bench_result.h. bench_report.c writes by the names, bench_read.c reads.
 */
#include "bench_result.h"

#include <math.h>
#include <stddef.h>

enum kind { REAL, INT, INT32, INT64 };

/* A GPU's GFLOP/s are printed in units of 1e3. */
static const struct column {
    const char *name;
    bool cpu, gpu;
    enum kind kind;
    size_t offset;
    double unit;
} columns[] = {
    {"threads", true, false, INT32, offsetof(bench_result, report.threads), 1},
    {"tile_products", true, false, INT32, offsetof(bench_result, report.tile_products), 1},
    {"samples", true, true, INT, offsetof(bench_result, samples), 1},
    {"seconds_median", true, true, REAL, offsetof(bench_result, seconds.median), 1},
    {"seconds_q1", true, true, REAL, offsetof(bench_result, seconds.q1), 1},
    {"seconds_q3", true, true, REAL, offsetof(bench_result, seconds.q3), 1},
    {"seconds_one_by_one", false, true, REAL, offsetof(bench_result, one_by_one), 1},
    {"gflops", true, false, REAL, offsetof(bench_result, gflops), 1},
    {"peak_gflops", true, false, REAL, offsetof(bench_result, peak_gflops), 1},
    {"tflops", false, true, REAL, offsetof(bench_result, gflops), 1e3},
    {"matmul_tflops", false, true, REAL, offsetof(bench_result, peak_gflops), 1e3},
    {"share", true, true, REAL, offsetof(bench_result, share), 1},
    {"amx_peak_gflops", true, false, REAL, offsetof(bench_result, amx_peak_gflops), 1},
    {"amx_share", true, false, REAL, offsetof(bench_result, amx_share), 1},
    {"workspace_bytes", true, true, REAL, offsetof(bench_result, report.workspace_bytes), 1},
    {"peak_rss_bytes", true, false, REAL, offsetof(bench_result, report.peak_rss_bytes), 1},
    {"max_error", true, true, REAL, offsetof(bench_result, report.max_error), 1},
    {"error_c", true, true, REAL, offsetof(bench_result, report.c), 1},
    {"error_rows", true, true, INT64, offsetof(bench_result, report.rows), 1},
    {"ratio", true, true, REAL, offsetof(bench_result, ratio), 1},
    {"ratio_one_by_one", false, true, REAL, offsetof(bench_result, one_by_one_ratio), 1},
    {"cache_gbs", true, false, REAL, offsetof(bench_result, cache_rate), 1},
    {"read_gbs", true, false, REAL, offsetof(bench_result, read_rate), 1},
    {"cache_share", true, false, REAL, offsetof(bench_result, cache_share), 1},
    {"waited", true, false, REAL, offsetof(bench_result, waited), 1},
};

enum { COLUMNS = sizeof columns / sizeof columns[0] };

const char *bench_column(int n, int32_t device)
{
    const struct column *c = &columns[n];
    return n >= COLUMNS ? NULL : (device == ATTN_DEVICE_CUDA ? c->gpu : c->cpu) ? c->name : "";
}

double bench_get(const bench_result *result, int n)
{
    const void *field = (const char *)result + columns[n].offset;
    switch (columns[n].kind) {
    case INT:
        return *(const int *)field;
    case INT32:
        return *(const int32_t *)field;
    case INT64:
        return (double)*(const int64_t *)field;
    default:
        return *(const double *)field / columns[n].unit;
    }
}

void bench_set(bench_result *result, int n, double value)
{
    void *field = (char *)result + columns[n].offset;
    double count = isfinite(value) && fabs(value) < 1e9 ? value : 0;
    switch (columns[n].kind) {
    case INT:
        *(int *)field = (int)count;
        break;
    case INT32:
        *(int32_t *)field = (int32_t)count;
        break;
    case INT64:
        *(int64_t *)field = (int64_t)count;
        break;
    default:
        *(double *)field = value * columns[n].unit;
    }
}

bool bench_is_wrong(const bench_result *result)
{
    return result->measured && result->report.not_compared[0] == '\0' &&
           !(result->report.max_error < 0x1p-6);
}
