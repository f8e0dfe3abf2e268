/*
 * bench_report.c: the results of `attn bench` as an aligned table, as JSON objects or as CSV.
 */
#include "bench_report.h"
#include "cli.h"
#include "style.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void print_faster(const bench_result *result)
{
    if (bench_is_wrong(result)) {
        printf("  %sWRONG%s\n", cli_colour(CLI_BAD), cli_colour(CLI_PLAIN));
        return;
    }
    if (result->report.not_compared[0] != '\0') {
        printf("  O not compared: %s", result->report.not_compared);
    }
    if (isfinite(result->ratio) && strcmp(result->implementation, "libattn") != 0) {
        printf("  libattn is %.2f x as fast\n", result->ratio);
    } else {
        putchar('\n');
    }
}

static void print_on_gpu(const bench_result *result)
{
    cli_text median, q1, q3, one_by_one;
    char share[16] = "-";
    if (isfinite(result->share)) {
        snprintf(share, sizeof share, "%.1f %%", 100 * result->share);
    }
    printf("  %-11s %-31s %10s %9s .. %-9s %10s %9.1f %9s %9.1e", result->implementation,
           result->report.kernel, cli_seconds(median, result->seconds.median),
           cli_seconds(q1, result->seconds.q1), cli_seconds(q3, result->seconds.q3),
           cli_seconds(one_by_one, result->one_by_one), result->gflops * 1e-3, share,
           result->report.max_error);
    print_faster(result);
}

static void print_on_cpu(const bench_result *result)
{
    cli_text median, q1, q3, workspace, rss;
    char share[32] = "-", error[16] = "-";
    bool tiles = isfinite(result->amx_share) && result->report.tile_products > 0;
    if (isfinite(result->share)) {
        snprintf(share, sizeof share, tiles ? "%.1f %% (%.1f %% of tiles)" : "%.1f %%",
                 100 * result->share, 100 * result->amx_share);
    }
    if (isfinite(result->cache_share)) {
        snprintf(share, sizeof share, "%.1f of %.1f GB/s, %.0f %%", result->cache_rate,
                 result->read_rate, 100 * result->cache_share);
    }
    if (isfinite(result->report.max_error)) {
        snprintf(error, sizeof error, "%.1e", result->report.max_error);
    }
    printf("  %-11s %-30s %3d %10s %9s .. %-9s %9.2f %8s %10s %10s %9s", result->implementation,
           result->report.kernel, result->report.threads,
           cli_seconds(median, result->seconds.median), cli_seconds(q1, result->seconds.q1),
           cli_seconds(q3, result->seconds.q3), result->gflops, share,
           result->report.workspace_bytes > 0 ? cli_bytes(workspace, result->report.workspace_bytes)
                                              : "-",
           cli_bytes(rss, result->report.peak_rss_bytes), error);
    print_faster(result);
}

static void print_head(bool gpu)
{
    if (gpu) {
        printf("%-13s %-31s %10s %22s %10s %9s %9s %9s\n", "", "kernel", "median", "quartiles     ",
               "one by one", "TFLOP/s", "of matmul", "error");
    } else {
        printf("%-13s %-30s %3s %10s %22s %9s %8s %10s %10s %9s\n", "", "kernel", "thr", "median",
               "quartiles     ", "GFLOP/s", "of peak", "workspace", "peak RSS", "error");
    }
}

static void print_text(const char *line, const bench_result *results, int count)
{
    static bool headed;
    bool gpu = results[0].device == ATTN_DEVICE_CUDA;
    if (!headed) {
        print_head(gpu);
        headed = true;
    }
    puts(line);
    for (int i = 0; i < count; i++) {
        if (results[i].measured) {
            gpu ? print_on_gpu(&results[i]) : print_on_cpu(&results[i]);
        } else {
            printf("  %-11s not measured: %s\n", results[i].implementation, results[i].why);
        }
    }
    fflush(stdout);
}

static void add(cJSON *object, const char *name, double value)
{
    isfinite(value) ? cJSON_AddNumberToObject(object, name, value)
                    : cJSON_AddNullToObject(object, name);
}

static void add_measured(cJSON *object, const bench_result *result)
{
    const char *name;
    cJSON_AddStringToObject(object, "kernel", result->report.kernel);
    for (int n = 0; (name = bench_column(n, result->device)) != NULL; n++) {
        if (name[0] != '\0') {
            add(object, name, bench_get(result, n));
        }
    }
    cJSON_AddStringToObject(object, "not_compared", result->report.not_compared);
}

/* Names once, then values; a problem of blanks and commas in quotes. */
static void print_csv(const cJSON *object)
{
    static bool headed;
    for (int pass = headed; pass < 2; pass++) {
        for (const cJSON *item = object->child; item != NULL; item = item->next) {
            if (pass == 0) {
                fputs(item->string, stdout);
            } else if (cJSON_IsString(item)) {
                printf(strchr(item->valuestring, ',') != NULL ? "\"%s\"" : "%s", item->valuestring);
            } else if (cJSON_IsNumber(item)) {
                printf("%.6g", item->valuedouble);
            }
            putchar(item->next != NULL ? ',' : '\n');
        }
    }
    headed = true;
    fflush(stdout);
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

void bench_print(enum bench_format format, const bench_result *results, int count)
{
    char line[BENCH_MAX_LINE];
    problem_print(results[0].problem, line, sizeof line);
    if (format == BENCH_TEXT) {
        print_text(line, results, count);
    }
    for (int i = 0; i < count && format != BENCH_TEXT; i++) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "impl", results[i].implementation);
        cJSON_AddStringToObject(object, "problem", line);
        if (results[i].measured) {
            add_measured(object, &results[i]);
        } else if (format == BENCH_CSV) {
            printf("# not measured: %s, %s: %s\n", results[i].implementation, line, results[i].why);
        } else {
            cJSON_AddStringToObject(object, "skipped", results[i].why);
        }
        if (format == BENCH_JSON) {
            cli_print_json(object);
        } else {
            results[i].measured ? print_csv(object) : (void)0;
            cJSON_Delete(object);
        }
    }
}
