/*
 * bench_summary.c: the lines around the results of `attn bench`: their origin, and means at the
 * end.
 */
#include "bench.h"
#include "gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The record ------------------------------------------------------------------------------ */

/* "NVIDIA H200, sm_90, 132 multiprocessors, 140 GiB, CUDA driver 13.0; " */
static int describe_gpu(char *text, size_t size)
{
    cli_text memory;
    gpu_properties p;
    int driver;
    (void)gpu_count(&driver);
    gpu_describe(0, &p);
    return snprintf(text, size, "%s, sm_%d%d, %d multiprocessors, %s, CUDA driver %d.%d; ", p.name,
                    p.major, p.minor, p.multiprocessors, cli_bytes(memory, (double)p.memory_bytes),
                    driver / 1000, driver % 1000 / 10);
}

/* "AMD EPYC, 2 cores, avx2, L2 512 KiB" */
static void describe_cpu(char *text, size_t size)
{
    char line[512], model[256] = "CPU";
    cli_text l2;
    attn_info info = {.struct_size = sizeof info};
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL &&
           sscanf(line, "model name : %255[^\n]", model) != 1) {
    }
    if (file != NULL) {
        fclose(file);
    }
    attn_get_info(NULL, &info);
    snprintf(text, size, "%s, %d cores, %s, L2 %s; %s", model, info.threads, info.cpu_features,
             cli_bytes(l2, (double)info.l2_bytes), info.build);
}

/* Prints words as they can be typed again: those with blanks in quotes. */
static void write_command(char *text, size_t size, int argc, char **argv)
{
    size_t used = 0;
    for (int i = 0; i < argc && used < size; i++) {
        const char *quote = i > 0 && strpbrk(argv[i], " {}*$") != NULL ? "\"" : "";
        used += (size_t)snprintf(text + used, size - used, "%s%s%s%s", i > 0 ? " " : "", quote,
                                 argv[i], quote);
    }
}

void bench_record_fill(bench_record *record, int32_t device, int argc, char **argv)
{
    int used = device == ATTN_DEVICE_CUDA ? describe_gpu(record->machine, 256) : 0;
    describe_cpu(record->machine + used, sizeof record->machine - (size_t)used);
    snprintf(record->commit, sizeof record->commit, "%s", ATTN_COMMIT);
    write_command(record->command, sizeof record->command, argc, argv);
}

void bench_print_record(enum bench_format format, const bench_record *record)
{
    if (format == BENCH_JSON) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "machine", record->machine);
        cJSON_AddStringToObject(object, "commit", record->commit);
        cJSON_AddStringToObject(object, "command", record->command);
        cli_print_json(object);
    } else {
        printf("# machine: %s\n# commit: %s\n# command: %s\n", record->machine, record->commit,
               record->command);
    }
}

/* ---- Means ----------------------------------------------------------------------------------- */

struct mean {
    int cells;
    double logarithms, least;
    const problem *worst;
};

/* against NULL: the fastest in each problem, which is libattn's own ratio */
static struct mean mean_of(const bench_result *r, int count, int32_t dtype, const char *against)
{
    struct mean mean = {0, 0, INFINITY, NULL};
    for (int i = 0; i < count; i++) {
        if (r[i].measured && r[i].problem->dtype == dtype && isfinite(r[i].ratio) &&
            strcmp(r[i].implementation, against != NULL ? against : "libattn") == 0) {
            mean.cells++;
            mean.logarithms += log(r[i].ratio);
            mean.worst = r[i].ratio < mean.least ? r[i].problem : mean.worst;
            mean.least = fmin(mean.least, r[i].ratio);
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
        printf("# %-4s libattn / %-16s %3d problems, geometric mean %6.2f, least %6.2f: %s\n",
               dtype, against, mean->cells, geometric, mean->least, line);
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
