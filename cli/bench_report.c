/*
 * bench_report.c: the results of `attn bench` as an aligned table or as JSON objects.
 */
#include "bench.h"
#include "cli.h"

#include <math.h>
#include <stdio.h>

static void print_measured(const bench_result *r)
{
    cli_text median, q1, q3, workspace, rss;
    char share[16] = "-", faster[32] = "";
    if (isfinite(r->share)) {
        snprintf(share, sizeof share, "%.1f %%", 100 * r->share);
    }
    if (isfinite(r->ratio) && r->implementation[0] == 'l') {
        snprintf(faster, sizeof faster, "%.2f x the speed of standard", r->ratio);
    }
    printf("  %-9s %-17s %3d %10s %9s .. %-9s %9.2f %8s %10s %10s %9.1e  %s\n", r->implementation, r->report.kernel,
           r->report.threads, cli_seconds(median, r->seconds.median), cli_seconds(q1, r->seconds.q1),
           cli_seconds(q3, r->seconds.q3), r->gflops, share, cli_bytes(workspace, r->report.workspace_bytes),
           cli_bytes(rss, r->report.peak_rss_bytes), r->report.max_error, faster);
}

void bench_print_text(const bench_result *results, int count)
{
    static bool headed;
    char line[BENCH_MAX_LINE];
    if (!headed) {
        printf("%-11s %-17s %3s %10s %22s %9s %8s %10s %10s %9s\n", "", "kernel", "thr", "median", "quartiles     ",
               "GFLOP/s", "of peak", "workspace", "peak RSS", "error");
        headed = true;
    }
    problem_print(results[0].problem, line, sizeof line);
    puts(line);
    for (int i = 0; i < count; i++) {
        if (results[i].measured) {
            print_measured(&results[i]);
        } else {
            printf("  %-9s not measured: %s\n", results[i].implementation, results[i].why);
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
    add(object, "workspace_bytes", r->report.workspace_bytes);
    add(object, "peak_rss_bytes", r->report.peak_rss_bytes);
    add(object, "max_error", r->report.max_error);
    add(object, "error_c", r->report.c);
    add(object, "error_rows", (double)r->report.rows);
    add(object, "ratio", r->ratio);
}

void bench_print_json(const bench_result *results, int count)
{
    char line[BENCH_MAX_LINE];
    problem_print(results[0].problem, line, sizeof line);
    for (int i = 0; i < count; i++) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "impl", results[i].implementation);
        cJSON_AddStringToObject(object, "problem", line);
        if (results[i].measured) {
            add_measured(object, &results[i]);
        } else {
            cJSON_AddStringToObject(object, "skipped", results[i].why);
        }
        cli_print_json(object);
    }
}
