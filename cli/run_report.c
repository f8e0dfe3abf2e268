/*
 * run_report.c: the report of `attn run`, in words or as a JSON object.
 */
#include "cli.h"
#include "style.h"
#include "run_report.h"
#include "standard.h"

#include <stdio.h>

static const char *dtype_name(int32_t dtype)
{
    static const char *const names[] = {"?", "f64", "f32", "f16", "bf16"};
    return dtype >= ATTN_F64 && dtype <= ATTN_BF16 ? names[dtype] : names[0];
}

typedef char shape_text[96];
static const char *write_shape(shape_text text, const attn_tensor *t)
{
    snprintf(text, sizeof(shape_text), "(%lld, %lld, %lld, %lld)", (long long)t->shape[0],
             (long long)t->shape[1], (long long)t->shape[2], (long long)t->shape[3]);
    return text;
}

/* Bytes of the scores that standard attention stores: all heads. */
static double scores_bytes(const run_result *result)
{
    const attn_tensor *q = &result->args->q, *k = &result->args->k;
    return (double)q->shape[0] * (double)q->shape[2] * (double)q->shape[1] * (double)k->shape[1] *
           (q->dtype == ATTN_F64 ? 8 : 4);
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

static void print_errors(const run_result *result)
{
    const error_stats *errors = &result->errors;
    char lse[64] = "";
    if (result->args->lse.data != NULL) {
        snprintf(lse, sizeof lse, "; LSE %.2f (at most %.6g)", errors->lse, result->allowed.lse);
    }
    cli_fact("error       ",
             "%lld rows against float64: |O - O64| <= %.2g sum p|v|; bound c = %.2f (at most "
             "%.6g)%s",
             (long long)errors->rows, errors->relative, errors->c, result->allowed.c, lse);
    if (result->args->o.dtype == ATTN_F16 || result->args->o.dtype == ATTN_BF16) {
        cli_fact("            ", "RMSE %.3g, %.4f times that of rounding the exact O to %s",
                 errors->rmse, errors->rmse / errors->rmse_once, dtype_name(result->args->o.dtype));
    }
}

static void print_grad_errors(const run_result *result)
{
    const attn_tensor *tensors[ORACLE_GRADIENTS];
    char text[256] = "";
    int length = 0;
    grad_errors_tensors(result->grad, tensors);
    for (int n = 0; n < ORACLE_GRADIENTS; n++) {
        if (tensors[n]->data != NULL) {
            length += snprintf(text + length, sizeof text - (size_t)length, "%s %s %.2f",
                               length > 0 ? "," : "", grad_errors_name((enum oracle_gradient)n),
                               result->grad_errors.c[n]);
        }
    }
    cli_fact("            ", "gradients: bound c%s (at most %.6g)", text, result->allowed.grad_c);
}

static void add_grad_errors(cJSON *object, const run_result *result)
{
    const attn_tensor *tensors[ORACLE_GRADIENTS];
    grad_errors_tensors(result->grad, tensors);
    for (int n = 0; n < ORACLE_GRADIENTS; n++) {
        char name[32];
        snprintf(name, sizeof name, "error_%s", grad_errors_name((enum oracle_gradient)n));
        if (tensors[n]->data != NULL) {
            cJSON_AddNumberToObject(object, name, result->grad_errors.c[n]);
        }
    }
}

static void print_comparison(const run_result *result)
{
    cli_text time, matrix;
    if (result->refused != NULL) {
        cli_fact("standard    ", "not run: %s", result->refused);
        return;
    }
    cli_fact("standard    ",
             "%s with %s in f32, and %s for the scores of one head: %.2f times the time, "
             "%.3g times the "
             "workspace",
             cli_seconds(time, result->standard_seconds), standard_kernel(),
             cli_bytes(matrix, result->standard_workspace),
             result->standard_seconds / result->seconds,
             result->standard_workspace / (double)result->plan.workspace_bytes);
}

void run_print_text(const run_result *result)
{
    const attn_plan *plan = &result->plan;
    double tiles = (double)(plan->tiles_full + plan->tiles_partial + plan->tiles_skipped);
    cli_text time, workspace, matrix;
    shape_text q, k, v;
    cli_fact("attention   ", "q %s  k %s  v %s  %s -> %s, as (batch, sequence, head, dim)",
             write_shape(q, &result->args->q), write_shape(k, &result->args->k),
             write_shape(v, &result->args->v), dtype_name(result->args->q.dtype),
             dtype_name(result->args->o.dtype));
    cli_fact("kernel      ", "%s on %d thread%s; %s", plan->kernel, plan->threads,
             plan->threads == 1 ? "" : "s", plan->why);
    cli_fact("time        ", "%s, %.4g GFLOP/s", cli_seconds(time, result->seconds),
             plan->flops / result->seconds * 1e-9);
    if (result->grad != NULL) {
        cli_fact("backward    ", "%s, %.4g GFLOP/s; workspace %s",
                 cli_seconds(time, result->grad_seconds),
                 result->grad_plan.flops / result->grad_seconds * 1e-9,
                 cli_bytes(workspace, (double)result->grad_plan.workspace_bytes));
    }
    cli_fact("tiles       ",
             "%d x %d; %lld visited, %lld of them masked in part, %lld skipped (%.1f %%)",
             plan->strip, plan->key_block, (long long)(plan->tiles_full + plan->tiles_partial),
             (long long)plan->tiles_partial, (long long)plan->tiles_skipped,
             percent((double)plan->tiles_skipped, tiles));
    cli_fact("workspace   ", "%s; the matrices of scores that standard attention stores have %s",
             cli_bytes(workspace, (double)plan->workspace_bytes),
             cli_bytes(matrix, scores_bytes(result)));
    if (result->checked) {
        print_errors(result);
        result->grad != NULL ? print_grad_errors(result) : (void)0;
    }
    if (result->compared) {
        print_comparison(result);
    }
}

static void add_shape(cJSON *object, const char *name, const attn_tensor *t)
{
    cJSON *shape = cJSON_AddArrayToObject(object, name);
    for (int a = 0; a < 4; a++) {
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->shape[a]));
    }
}

void run_print_json(const run_result *result)
{
    const attn_plan *plan = &result->plan;
    cJSON *o = cJSON_CreateObject();
    add_shape(o, "q_shape", &result->args->q);
    add_shape(o, "k_shape", &result->args->k);
    add_shape(o, "v_shape", &result->args->v);
    cJSON_AddStringToObject(o, "dtype", dtype_name(result->args->q.dtype));
    cJSON_AddStringToObject(o, "o_dtype", dtype_name(result->args->o.dtype));
    cJSON_AddStringToObject(o, "kernel", plan->kernel);
    cJSON_AddNumberToObject(o, "threads", plan->threads);
    cJSON_AddNumberToObject(o, "seconds", result->seconds);
    cJSON_AddNumberToObject(o, "gflops", plan->flops / result->seconds * 1e-9);
    cJSON_AddNumberToObject(o, "tiles_full", (double)plan->tiles_full);
    cJSON_AddNumberToObject(o, "tiles_partial", (double)plan->tiles_partial);
    cJSON_AddNumberToObject(o, "tiles_skipped", (double)plan->tiles_skipped);
    cJSON_AddNumberToObject(o, "workspace_bytes", (double)plan->workspace_bytes);
    cJSON_AddNumberToObject(o, "scores_bytes", scores_bytes(result));
    if (result->grad != NULL) {
        cJSON_AddNumberToObject(o, "backward_seconds", result->grad_seconds);
        cJSON_AddNumberToObject(o, "backward_gflops",
                                result->grad_plan.flops / result->grad_seconds * 1e-9);
        cJSON_AddNumberToObject(o, "backward_workspace_bytes",
                                (double)result->grad_plan.workspace_bytes);
    }
    if (result->checked && result->grad != NULL) {
        add_grad_errors(o, result);
    }
    if (result->checked) {
        cJSON_AddNumberToObject(o, "max_error", result->errors.relative);
        cJSON_AddNumberToObject(o, "error_c", result->errors.c);
        if (result->args->lse.data != NULL) {
            cJSON_AddNumberToObject(o, "error_lse", result->errors.lse);
        }
        cJSON_AddNumberToObject(o, "rmse", result->errors.rmse);
        cJSON_AddNumberToObject(o, "rmse_once", result->errors.rmse_once);
        cJSON_AddNumberToObject(o, "error_rows", (double)result->errors.rows);
    }
    if (result->compared && result->refused != NULL) {
        cJSON_AddStringToObject(o, "standard_skipped", result->refused);
    } else if (result->compared) {
        cJSON_AddNumberToObject(o, "standard_seconds", result->standard_seconds);
        cJSON_AddNumberToObject(o, "standard_workspace_bytes", result->standard_workspace);
    }
    cli_print_json(o);
}
