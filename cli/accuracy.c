/*
 * accuracy.c: `attn check --accuracy`: the table of docs/numerics.md. The distance of O from
 * float64 on normal inputs and on inputs with outliers, for every type, beside the floor (the exact
 * result rounded once) and beside standard attention in the same type.
 */
#include "accuracy.h"
#include "cli.h"
#include "errors.h"
#include "naive.h"
#include "progress.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 256 queries over N = nk keys, a sample of N queries. */
static const char *const problems[] = {
    "nq=256 nk=1024 d=64",
    "nq=256 nk=4096 d=128",
    "nq=256 nk=16384 d=128",
};
static const char *const inputs[] = {"normal", "outlier"};
static const char *const dtypes[] = {"f64", "f32", "f16", "bf16"};

/* Sums of squares and maxima over seeds. */
struct row {
    char kernel[32];
    double floor, ours, naive, ours_most, naive_most;
};

static void add(double *rmse, double *most, const error_stats *errors)
{
    *rmse += errors->rmse * errors->rmse;
    *most = fmax(*most, errors->relative);
}

static void measure(const problem_spec *problem, struct row *row)
{
    attn_context *context = NULL;
    attn_plan plan = {.struct_size = sizeof plan};
    problem_tensors tensors;
    error_stats errors;
    attn_status status = problem_context(problem, &context);
    if (status == ATTN_OK && !problem_tensors_create(problem, PLACE_PLAIN, &tensors)) {
        exit(cli_error(CLI_INTERNAL, "out of memory"));
    }
    status = status == ATTN_OK ? attn_forward_plan(context, &tensors.args, &plan) : status;
    status = status == ATTN_OK ? attn_forward(context, &tensors.args) : status;
    if (status != ATTN_OK) {
        exit(cli_status_error(status));
    }
    snprintf(row->kernel, sizeof row->kernel, "%s%s", plan.kernel,
             problem->precise ? " precise" : "");
    errors_measure(&tensors.args, problem->nq * problem->hq, &errors);
    add(&row->ours, &row->ours_most, &errors);
    row->floor += errors.rmse_once * errors.rmse_once;
    if (!naive_forward(&tensors.args)) {
        exit(cli_error(CLI_INTERNAL, "out of memory"));
    }
    errors_measure(&tensors.args, problem->nq * problem->hq, &errors);
    add(&row->naive, &row->naive_most, &errors);
    problem_tensors_free(&tensors);
    attn_context_destroy(context);
}

/* "1.34": times the error of rounding. f64 results are compared with 64 bits, which do not show
 * it. */
static const char *in_roundings(char text[16], double rmse, double once)
{
    snprintf(text, 16, once > 0 ? "%.2f" : "-", rmse / once);
    return text;
}

static void tell(const problem_spec *problem, const char *dtype, const char *kind,
                 const struct row *r, double seeds)
{
    double ours = sqrt(r->ours / seeds), naive = sqrt(r->naive / seeds),
           once = sqrt(r->floor / seeds);
    char of_ours[16], of_naive[16];
    cli_progress(NULL);
    printf("| %-4s | %-7s | %5lld | %3lld | %-16s | %.2e | %6s | %.2e | %7s | %.1e | %.1e |\n",
           dtype, kind, (long long)problem->nk, (long long)problem->d, r->kernel, ours,
           in_roundings(of_ours, ours, once), naive, in_roundings(of_naive, naive, once),
           r->ours_most, r->naive_most);
    fflush(stdout);
}

static void one_row(const char *shape, const char *dtype, const char *kind, const char *more,
                    int64_t seeds)
{
    char line[256], error[256];
    struct row row = {0};
    problem_spec problem;
    snprintf(line, sizeof line, "hq=1 %s dtype=%s inputs=%s%s", shape, dtype, kind, more);
    if (!problem_parse(line, &problem, error, sizeof error)) {
        exit(cli_error(CLI_INTERNAL, "%s", error));
    }
    for (problem.seed = 0; (int64_t)problem.seed < seeds; problem.seed++) {
        cli_progress("%s seed=%lld", line, (long long)problem.seed);
        measure(&problem, &row);
    }
    tell(&problem, dtype, kind, &row, (double)seeds);
}

int accuracy_table(int64_t seeds)
{
    attn_info info = {.struct_size = sizeof info};
    attn_status status = attn_get_info(NULL, &info);
    if (status != ATTN_OK) {
        return cli_status_error(status);
    }
    printf("One head, 256 queries of N keys, seeds 0 to %lld; outlier: N(0, 1) + N(0, 100) "
           "Bernoulli(0.001)\n\n"
           "| type | inputs  |     N |   d | kernel           | RMSE     | x rounding | naive RMSE "
           "| x rounding | worst "
           "error / A | naive |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
           (long long)seeds - 1);
    const bool tiles = strstr(info.cpu_features, "amx") != NULL,
               pairs = strstr(info.cpu_features, "avx512bf16") != NULL,
               arm_pairs = strstr(info.cpu_features, "neonbf16") != NULL;
    for (size_t t = 0; t < sizeof dtypes / sizeof dtypes[0]; t++) {
        for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
            for (size_t n = 0; n < sizeof problems / sizeof problems[0]; n++) {
                one_row(problems[n], dtypes[t], inputs[i], "", seeds);
                if (pairs && strcmp(dtypes[t], "bf16") == 0) {
                    one_row(problems[n], dtypes[t], inputs[i], " cpu=avx512bf16", seeds);
                }
                if (arm_pairs && strcmp(dtypes[t], "bf16") == 0) { /* "" ran neonbf16 */
                    one_row(problems[n], dtypes[t], inputs[i], " cpu=neon", seeds);
                }
                if (tiles && strcmp(dtypes[t], "f64") != 0) {
                    one_row(problems[n], dtypes[t], inputs[i], " cpu=amx", seeds);
                    const bool f32 = strcmp(dtypes[t], "f32") == 0;
                    one_row(problems[n], dtypes[t], inputs[i],
                            f32 ? " bf16x3=1" : " cpu=amx precise=1", seeds);
                }
            }
        }
    }
    return CLI_OK;
}
