/*
 * bench_summary.c: the lines around the results of `attn bench`: their origin, and means at the
 * end.
 */
#include "bench_summary.h"
#include "cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mean {
    int cells;
    double logarithms, least;
    const problem_spec *worst;
};

/* against NULL: the fastest in each problem, which is libattn's own ratio */
static struct mean mean_of(const bench_result *result, int count, int32_t dtype,
                           const char *against)
{
    struct mean mean = {0, 0, INFINITY, NULL};
    for (int i = 0; i < count; i++) {
        if (result[i].measured && result[i].problem->dtype == dtype && isfinite(result[i].ratio) &&
            strcmp(result[i].implementation, against != NULL ? against : "libattn") == 0) {
            mean.cells++;
            mean.logarithms += log(result[i].ratio);
            mean.worst = result[i].ratio < mean.least ? result[i].problem : mean.worst;
            mean.least = fmin(mean.least, result[i].ratio);
        }
    }
    return mean;
}

static void print_mean(enum bench_format format, const char *dtype, const char *against,
                       const struct mean *mean)
{
    char line[BENCH_MAX_LINE];
    double geometric = exp(mean->logarithms / mean->cells);
    problem_print(mean->worst, line, sizeof line);
    if (format == BENCH_JSON) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "summary", dtype);
        cJSON_AddStringToObject(object, "against", against);
        cJSON_AddNumberToObject(object, "problems", mean->cells);
        cJSON_AddNumberToObject(object, "geometric_mean", geometric);
        cJSON_AddNumberToObject(object, "least", mean->least);
        cJSON_AddStringToObject(object, "least_problem", line);
        cli_print_json(object);
    } else {
        printf("# %-4s libattn / %-16s %3d %s geometric mean %6.2f, least %6.2f: %s\n", dtype,
               against, mean->cells, mean->cells == 1 ? "problem, " : "problems,", geometric,
               mean->least, line);
    }
}

void bench_print_summary(enum bench_format format, const bench_result *results, int count)
{
    static const char *const name[] = {
        [ATTN_F64] = "f64", [ATTN_F32] = "f32", [ATTN_F16] = "f16", [ATTN_BF16] = "bf16"};
    for (int32_t dtype = ATTN_F64; dtype <= ATTN_BF16; dtype++) {
        for (int i = 0; i < count && results[i].problem == results[0].problem; i++) {
            if (results[i].implementation == NULL) {
                break; /* a device with fewer */
            }
            bool ours = strcmp(results[i].implementation, "libattn") == 0;
            struct mean mean =
                mean_of(results, count, dtype, ours ? NULL : results[i].implementation);
            if (mean.cells > 0) {
                print_mean(format, name[dtype], ours ? "the fastest" : results[i].implementation,
                           &mean);
            }
        }
    }
}
