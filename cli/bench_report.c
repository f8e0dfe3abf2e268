/*
 * bench_report.c: the results of `attn bench` as an aligned table, as JSON objects or as CSV.
 */
#include "bench.h"
#include "cli.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void print_measured(const bench_result *r)
{
    cli_text median, q1, q3, workspace, rss;
    char share[32] = "-", faster[32] = "";
    bool tiles = isfinite(r->amx_share) && strncmp(r->report.kernel, "amx_", 4) == 0;
    if (isfinite(r->share)) {
        snprintf(share, sizeof share, tiles ? "%.1f %% (%.1f %% of tiles)" : "%.1f %%", 100 * r->share,
                 100 * r->amx_share);
    }
    if (bench_is_wrong(r)) {
        snprintf(faster, sizeof faster, "WRONG");
    } else if (isfinite(r->ratio) && strcmp(r->implementation, "libattn") != 0) {
        snprintf(faster, sizeof faster, "libattn is %.2f x as fast", r->ratio);
    }
    printf("  %-11s %-30s %3d %10s %9s .. %-9s %9.2f %8s %10s %10s %9.1e  %s\n", r->implementation, r->report.kernel,
           r->report.threads, cli_seconds(median, r->seconds.median), cli_seconds(q1, r->seconds.q1),
           cli_seconds(q3, r->seconds.q3), r->gflops, share,
           r->report.workspace_bytes > 0 ? cli_bytes(workspace, r->report.workspace_bytes) : "-",
           cli_bytes(rss, r->report.peak_rss_bytes), r->report.max_error, faster);
}

bool bench_is_wrong(const bench_result *r)
{
    return r->measured && !(r->report.max_error < 0x1p-6);
}

static void print_text(const char *line, const bench_result *results, int count)
{
    static bool headed;
    if (!headed) {
        printf("%-13s %-30s %3s %10s %22s %9s %8s %10s %10s %9s\n", "", "kernel", "thr", "median", "quartiles     ",
               "GFLOP/s", "of peak", "workspace", "peak RSS", "error");
        headed = true;
    }
    puts(line);
    for (int i = 0; i < count; i++) {
        if (results[i].measured) {
            print_measured(&results[i]);
        } else {
            printf("  %-11s not measured: %s\n", results[i].implementation, results[i].why);
        }
    }
    fflush(stdout);
}

static void add(cJSON *object, const char *name, double value)
{
    isfinite(value) ? cJSON_AddNumberToObject(object, name, value) : cJSON_AddNullToObject(object, name);
}

static void add_measured(cJSON *object, const bench_result *r)
{
    cJSON_AddStringToObject(object, "kernel", r->report.kernel);
    add(object, "threads", r->report.threads);
    add(object, "samples", r->samples);
    add(object, "seconds_median", r->seconds.median);
    add(object, "seconds_q1", r->seconds.q1);
    add(object, "seconds_q3", r->seconds.q3);
    add(object, "gflops", r->gflops);
    add(object, "peak_gflops", r->peak_gflops);
    add(object, "share", r->share);
    add(object, "amx_peak_gflops", r->amx_peak_gflops);
    add(object, "amx_share", r->amx_share);
    add(object, "workspace_bytes", r->report.workspace_bytes);
    add(object, "peak_rss_bytes", r->report.peak_rss_bytes);
    add(object, "max_error", r->report.max_error);
    add(object, "error_c", r->report.c);
    add(object, "error_rows", (double)r->report.rows);
    add(object, "ratio", r->ratio);
    add(object, "waited", r->waited);
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
