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
static double scores_bytes(const run_result *r)
{
    const attn_tensor *q = &r->args->q, *k = &r->args->k;
    return (double)q->shape[0] * (double)q->shape[2] * (double)q->shape[1] * (double)k->shape[1] *
           (q->dtype == ATTN_F64 ? 8 : 4);
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

static void print_errors(const run_result *r)
{
    const errors *e = &r->errors;
    char lse[64] = "";
    if (r->args->lse.data != NULL) {
        snprintf(lse, sizeof lse, "; LSE %.2f (at most %.6g)", e->lse, r->allowed.lse);
    }
    cli_fact("error       ",
             "%lld rows against float64: |O - O64| <= %.2g sum p|v|; bound c = %.2f (at most "
             "%.6g)%s",
             (long long)e->rows, e->relative, e->c, r->allowed.c, lse);
    if (r->args->o.dtype == ATTN_F16 || r->args->o.dtype == ATTN_BF16) {
        cli_fact("            ", "RMSE %.3g, %.4f times that of rounding the exact O to %s",
                 e->rmse, e->rmse / e->rmse_once, dtype_name(r->args->o.dtype));
    }
}

static void print_grad_errors(const run_result *r)
{
    const attn_tensor *tensors[ORACLE_GRADIENTS];
    char text[256] = "";
    int length = 0;
    grad_errors_tensors(r->grad, tensors);
    for (int n = 0; n < ORACLE_GRADIENTS; n++) {
        if (tensors[n]->data != NULL) {
            length += snprintf(text + length, sizeof text - (size_t)length, "%s %s %.2f",
                               length > 0 ? "," : "", grad_errors_name((enum oracle_gradient)n),
                               r->grad_errors.c[n]);
        }
    }
    cli_fact("            ", "gradients: bound c%s (at most %.6g)", text, r->allowed.grad_c);
}

static void print_comparison(const run_result *r)
{
    cli_text time, matrix;
    if (r->refused != NULL) {
        cli_fact("standard    ", "not run: %s", r->refused);
        return;
    }
    cli_fact("standard    ",
             "%s with %s in f32, and %s for the scores of one head: %.2f times the time, "
             "%.3g times the "
             "workspace",
             cli_seconds(time, r->standard_seconds), standard_kernel(),
             cli_bytes(matrix, r->standard_workspace), r->standard_seconds / r->seconds,
             r->standard_workspace / (double)r->plan.workspace_bytes);
}

void run_print_text(const run_result *r)
{
    const attn_plan *p = &r->plan;
    double tiles = (double)(p->tiles_full + p->tiles_partial + p->tiles_skipped);
    cli_text time, workspace, matrix;
    shape_text q, k, v;
    cli_fact("attention   ", "q %s  k %s  v %s  %s -> %s, as (batch, sequence, head, dim)",
             write_shape(q, &r->args->q), write_shape(k, &r->args->k), write_shape(v, &r->args->v),
             dtype_name(r->args->q.dtype), dtype_name(r->args->o.dtype));
    cli_fact("kernel      ", "%s on %d thread%s; %s", p->kernel, p->threads,
             p->threads == 1 ? "" : "s", p->why);
    cli_fact("time        ", "%s, %.4g GFLOP/s", cli_seconds(time, r->seconds),
             p->flops / r->seconds * 1e-9);
    if (r->grad != NULL) {
        cli_fact("backward    ", "%s, %.4g GFLOP/s; workspace %s",
                 cli_seconds(time, r->grad_seconds), r->grad_plan.flops / r->grad_seconds * 1e-9,
                 cli_bytes(workspace, (double)r->grad_plan.workspace_bytes));
    }
    cli_fact("tiles       ",
             "%d x %d; %lld visited, %lld of them masked in part, %lld skipped (%.1f %%)", p->strip,
             p->key_block, (long long)(p->tiles_full + p->tiles_partial),
             (long long)p->tiles_partial, (long long)p->tiles_skipped,
             percent((double)p->tiles_skipped, tiles));
    cli_fact("workspace   ", "%s; the matrices of scores that standard attention stores have %s",
             cli_bytes(workspace, (double)p->workspace_bytes), cli_bytes(matrix, scores_bytes(r)));
    if (r->checked) {
        print_errors(r);
        r->grad != NULL ? print_grad_errors(r) : (void)0;
    }
    if (r->compared) {
        print_comparison(r);
    }
}

static void add_shape(cJSON *object, const char *name, const attn_tensor *t)
{
    cJSON *shape = cJSON_AddArrayToObject(object, name);
    for (int a = 0; a < 4; a++) {
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->shape[a]));
    }
}

void run_print_json(const run_result *r)
{
    const attn_plan *p = &r->plan;
    cJSON *o = cJSON_CreateObject();
    add_shape(o, "q_shape", &r->args->q);
    add_shape(o, "k_shape", &r->args->k);
    add_shape(o, "v_shape", &r->args->v);
    cJSON_AddStringToObject(o, "dtype", dtype_name(r->args->q.dtype));
    cJSON_AddStringToObject(o, "o_dtype", dtype_name(r->args->o.dtype));
    cJSON_AddStringToObject(o, "kernel", p->kernel);
    cJSON_AddNumberToObject(o, "threads", p->threads);
    cJSON_AddNumberToObject(o, "seconds", r->seconds);
    cJSON_AddNumberToObject(o, "gflops", p->flops / r->seconds * 1e-9);
    cJSON_AddNumberToObject(o, "tiles_full", (double)p->tiles_full);
    cJSON_AddNumberToObject(o, "tiles_partial", (double)p->tiles_partial);
    cJSON_AddNumberToObject(o, "tiles_skipped", (double)p->tiles_skipped);
    cJSON_AddNumberToObject(o, "workspace_bytes", (double)p->workspace_bytes);
    cJSON_AddNumberToObject(o, "scores_bytes", scores_bytes(r));
    if (r->grad != NULL) {
        cJSON_AddNumberToObject(o, "backward_seconds", r->grad_seconds);
        cJSON_AddNumberToObject(o, "backward_gflops", r->grad_plan.flops / r->grad_seconds * 1e-9);
        cJSON_AddNumberToObject(o, "backward_workspace_bytes",
                                (double)r->grad_plan.workspace_bytes);
    }
    for (int n = 0; n < ORACLE_GRADIENTS && r->grad != NULL && r->checked; n++) {
        char name[32];
        snprintf(name, sizeof name, "error_%s", grad_errors_name((enum oracle_gradient)n));
        cJSON_AddNumberToObject(o, name, r->grad_errors.c[n]);
    }
    if (r->checked) {
        cJSON_AddNumberToObject(o, "max_error", r->errors.relative);
        cJSON_AddNumberToObject(o, "error_c", r->errors.c);
        cJSON_AddNumberToObject(o, "error_lse", r->errors.lse);
        cJSON_AddNumberToObject(o, "rmse", r->errors.rmse);
        cJSON_AddNumberToObject(o, "rmse_once", r->errors.rmse_once);
        cJSON_AddNumberToObject(o, "error_rows", (double)r->errors.rows);
    }
    if (r->compared && r->refused != NULL) {
        cJSON_AddStringToObject(o, "standard_skipped", r->refused);
    } else if (r->compared) {
        cJSON_AddNumberToObject(o, "standard_seconds", r->standard_seconds);
        cJSON_AddNumberToObject(o, "standard_workspace_bytes", r->standard_workspace);
    }
    cli_print_json(o);
}
