/*
 * check_gpu.c: `attn check --device cuda`: the same problems as on the CPU, on copies of their
 * tensors in the GPU's memory, against the float64 oracle. Every problem runs three times, on two
 * streams, into poisoned outputs between poisoned margins: for O alone, for O and LSE, and with the
 * maxima as well, since kernels end rows in a way of their own for each; all give equal bits. If it
 * wants a workspace it runs once more without one, since keys are not split then. With NaN sown
 * among the inputs (sown=N) it runs once more without them: rows that see none have the same bits
 * (C4, C7). --runs asks for more calls with all outputs.
 * Gradients (check_gpu_grad.c) are held to the bounds of the CPU's.
 *
 * Limits: promises A1 and A3, with kappa of one sum over all blocks where terms may be alike. From
 * inputs of 16 bits the tensor cores take probabilities in 16 bits (A2): that costs an element up
 * to a rounding of the type on the scale of sum p |v|, or 16 units of A1 where scores are large,
 * and all elements together an RMSE of at most 1.45 times that of rounding once, or what
 * errors_rmse_limit allows.
 */
#include "check_gpu.h"
#include "alike.h"
#include "args.h"
#include "check_gpu_grad.h"
#include "check_limit.h"
#include "gpu.h"
#include "gpu_copy.h"
#include "oracle.h"
#include "progress.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 10000 }; /* least number of elements for an RMSE */

struct check {
    attn_context *context;
    void *streams[2];
    int64_t runs;
    bool json;
    long long problems, failed, unsupported, on_tensor_cores; /* problems: of each seed */
    /* fast: relative to the bound for probabilities of 16 bits */
    double worst_c, worst_lse, worst_fast;
    double worst_rmse;              /* relative to its limit */
    double worst_grad, worst_alike; /* relative to their bounds; alike: O */
};

struct outcome {
    struct check_verdict verdict;
    attn_status status;
    char kernel[48], sentence[300]; /* sentence: the library's, unless status is ATTN_OK */
    bool on_tensor_cores;
    bool rounds;  /* probabilities are rounded to 16 bits */
    double kappa; /* where terms of sums may be alike (alike.h); else 0 */
    uint64_t workspace_bytes;
};

/* ---- Calls ----------------------------------------------------------------------------------- */

/* Runs one call on copies of the tensors and brings the outputs back. */
static attn_status call(const struct check *c, problem_tensors *tensors, void *stream,
                        uint64_t workspace_bytes, bool *intact)
{
    gpu_copy copies[ARGS_TENSORS];
    attn_forward_args args = tensors->args;
    problem_tensors_poison(tensors);
    for (int i = 0; i < ARGS_TENSORS; i++) {
        copies[i] = i == ARGS_V ? gpu_copy_beside(args_at(&tensors->args, i), &copies[ARGS_K])
                                : gpu_copy_tensor(args_at(&tensors->args, i));
        *args_at(&args, i) = copies[i].there;
    }
    args.stream = stream;
    args.workspace = workspace_bytes > 0 ? gpu_alloc(workspace_bytes) : NULL;
    args.workspace_bytes = workspace_bytes;
    check_limit_start();
    attn_status status = attn_forward(c->context, &args);
    gpu_wait();
    check_limit_stop();
    if (workspace_bytes > 0) {
        gpu_free(args.workspace);
    }
    for (int i = 0; i < ARGS_TENSORS; i++) {
        if (args_tensors[i].output) {
            gpu_copy_back(&copies[i]);
            *intact = *intact && gpu_margins_intact(&copies[i]);
        }
        gpu_copy_free(&copies[i]);
    }
    *intact = *intact && problem_tensors_intact(tensors);
    return status;
}

static attn_status plan(const struct check *c, const attn_forward_args *args, struct outcome *out)
{
    attn_plan plan = {.struct_size = sizeof plan};
    attn_status status = attn_forward_plan(c->context, args, &plan);
    if (status == ATTN_OK) {
        snprintf(out->kernel, sizeof out->kernel, "%s", plan.kernel);
        out->on_tensor_cores = plan.tile_products > 0;
        out->rounds = plan.weight_loss > 0;
        out->workspace_bytes = plan.workspace_bytes;
    }
    return status;
}

/* *e becomes the worse of both in each respect. */
static void add_errors(error_stats *errors, const error_stats *other)
{
    errors->relative = fmax(errors->relative, other->relative);
    errors->c = fmax(errors->c, other->c);
    errors->rounded = fmax(errors->rounded, other->rounded);
    errors->lse = fmax(errors->lse, other->lse);
    errors->row_max = fmax(errors->row_max, other->row_max);
    errors->rmse = fmax(errors->rmse, other->rmse);
}

/* True if one of the elements of a row of `t` is NaN. */
static bool has_nan(const attn_tensor *t, int64_t b, int64_t i, int64_t h)
{
    bool found = false;
    for (int64_t c = 0; t->data && c < t->shape[3]; c++) {
        found |= isnan(oracle_element(t, b, i, h, c));
    }
    return found;
}

static bool equal_row(const attn_tensor *t, const attn_tensor *u, int64_t b, int64_t i, int64_t h)
{
    bool equal = true;
    for (int64_t c = 0; t->data && c < t->shape[3]; c++) {
        equal &= oracle_element(t, b, i, h, c) == oracle_element(u, b, i, h, c);
    }
    return equal;
}

/* Compares the bits of rows that saw no NaN. The oracle says which rows did. */
static bool equal_where_clean(const attn_forward_args *sown, const attn_forward_args *clean)
{
    const attn_tensor *o = &sown->o;
    bool equal = true;
    for (int64_t b = 0; b < o->shape[0]; b++) {
        for (int64_t i = 0; i < o->shape[1]; i++) {
            for (int64_t h = 0; h < o->shape[2]; h++) {
                equal &= has_nan(o, b, i, h) || has_nan(&sown->lse, b, i, h) ||
                         (equal_row(o, &clean->o, b, i, h) &&
                          equal_row(&sown->lse, &clean->lse, b, i, h) &&
                          equal_row(&sown->row_max, &clean->row_max, b, i, h));
            }
        }
    }
    return equal;
}

/* Runs the problem without the NaN sown in it, to compare with `sown`, which has run. */
static void run_clean(const struct check *c, const problem_spec *problem,
                      const attn_forward_args *sown, struct outcome *out)
{
    problem_tensors clean;
    problem_spec without = *problem;
    without.sown = 0;
    if (!problem_tensors_create(&without, PLACE_PLAIN, &clean)) {
        exit(cli_error(CLI_INTERNAL, "out of memory"));
    }
    out->status = call(c, &clean, c->streams[0], out->workspace_bytes, &out->verdict.intact);
    out->verdict.equal = out->verdict.equal && equal_where_clean(sown, &clean.args);
    problem_tensors_free(&clean);
}

/* K and V in integers hold no NaN: what is sown in them are other numbers. */
static bool has_integers(const problem_spec *problem)
{
    return problem->kv_dtype == ATTN_I8 || problem->kv_dtype == ATTN_I4X2;
}

/* Masks of bits and of integers become bytes in the workspace, if they have elements. */
static bool needs_workspace(const attn_forward_args *args)
{
    const attn_tensor *mask = &args->mask;
    const int64_t *n = mask->shape;
    return mask->data && n[0] * n[1] * n[2] * n[3] > 0 && mask->dtype != ATTN_BOOL &&
           mask->dtype != ATTN_U8 && mask->dtype != ATTN_I8;
}

enum { SUBSETS = 3 };

static void run(const struct check *c, const problem_spec *problem, struct outcome *out)
{
    problem_tensors tensors;
    uint64_t hash[SUBSETS] = {0};
    error_stats without = {0};
    bool *intact = &out->verdict.intact;
    if (!problem_tensors_create(problem, PLACE_PLAIN, &tensors)) {
        exit(cli_error(CLI_INTERNAL, "out of memory"));
    }
    *out = (struct outcome){.verdict.intact = true};
    const attn_forward_args all = tensors.args;
    attn_forward_args subsets[SUBSETS] = {all, all, all}; /* of the outputs */
    subsets[0].lse = subsets[0].row_max = subsets[1].row_max = (attn_tensor){0};
    out->status = plan(c, &all, out);
    out->kappa = alike_possible(problem) ? alike_kappa(&all, false, ALIKE_RUNNING) : 0;
    if (out->status == ATTN_OK && needs_workspace(&all)) {
        const attn_status refused = call(c, &tensors, c->streams[0], 0, intact);
        out->status = refused == ATTN_ERR_WORKSPACE ? ATTN_OK : ATTN_ERR_WORKSPACE;
    } else if (out->status == ATTN_OK && out->workspace_bytes > 0) {
        out->status = call(c, &tensors, c->streams[0], 0, intact);
        errors_measure(&tensors.args, 0, &without);
    }
    out->verdict.equal = true;
    for (int64_t i = 0; (i < SUBSETS || i < c->runs) && out->status == ATTN_OK; i++) {
        const int subset = i < SUBSETS ? (int)i : SUBSETS - 1;
        tensors.args = subsets[subset];
        out->status = call(c, &tensors, c->streams[i % 2], out->workspace_bytes, intact);
        const uint64_t now = check_hash(&subsets[subset]);
        out->verdict.equal = out->verdict.equal && (i < SUBSETS || now == hash[subset]);
        hash[subset] = now;
    }
    if (out->status == ATTN_OK) {
        for (int i = 0; i < SUBSETS; i++) {
            out->verdict.equal = out->verdict.equal && check_hash(&subsets[i]) == hash[i];
        }
        errors_measure(&tensors.args, 0, &out->verdict.errors);
        add_errors(&out->verdict.errors, &without);
    }
    if (out->status == ATTN_OK && problem->sown > 0 && !has_integers(problem)) {
        run_clean(c, problem, &tensors.args, out);
    }
    if (out->status != ATTN_OK) {
        snprintf(out->sentence, sizeof out->sentence, "%s", attn_last_error());
    }
    problem_tensors_free(&tensors);
}

/* ---- Judging --------------------------------------------------------------------------------- */

/* RMSE of O over that of rounding it, or any number of its size, once. NaN where that says little:
 * few elements, O of 32 bits, which is not rounded, NaN sown, which leave few rows, or scores so
 * large that their own rounding decides. */
static double rmse_ratio(const problem_spec *problem, const struct outcome *out)
{
    const error_stats *errors = &out->verdict.errors;
    bool many = errors->rows * problem->dv >= MANY;
    return many && problem->o_dtype == problem->dtype && problem->sown == 0 &&
                   errors_scores_small(problem->dtype, errors) && errors->rmse_any > 0
               ? errors->rmse / fmax(errors->rmse_once, errors->rmse_any)
               : NAN;
}

static void judge(struct check *c, const problem_spec *problem, struct outcome *out)
{
    struct check_verdict *verdict = &out->verdict;
    const error_stats *errors = &verdict->errors;
    const errors_limits allowed =
        alike_limits((errors_limits){.c = CHECK_MAX_C, .lse = CHECK_MAX_LSE}, out->kappa);
    const double ratio = rmse_ratio(problem, out);
    if (out->rounds) {
        const double share = ratio / errors_rmse_limit(errors, out->kappa > 0);
        verdict->exact = errors->rounded <= 1 && !(share > 1);
        c->worst_fast = fmax(c->worst_fast, errors->rounded);
        c->worst_rmse = fmax(c->worst_rmse, share);
    } else {
        verdict->exact = errors->c <= allowed.c;
        double *const worst = out->kappa > 0 ? &c->worst_alike : &c->worst_c;
        *worst = fmax(*worst, out->kappa > 0 ? errors->c / allowed.c : errors->c);
    }
    c->worst_lse = out->kappa > 0 ? c->worst_lse : fmax(c->worst_lse, errors->lse);
    verdict->exact_lse = errors->lse <= allowed.lse;
    verdict->ok = out->status == ATTN_OK && verdict->intact && verdict->equal && verdict->exact &&
                  verdict->exact_lse;
    c->problems++;
    c->unsupported += out->status == ATTN_ERR_UNSUPPORTED;
    c->failed += !verdict->ok && out->status != ATTN_ERR_UNSUPPORTED;
    c->on_tensor_cores += out->on_tensor_cores;
}

/* ---- Telling --------------------------------------------------------------------------------- */

static void tell(const struct check *c, const problem_spec *problem, const char *line,
                 const struct outcome *out)
{
    const struct check_verdict *verdict = &out->verdict;
    cli_progress(NULL);
    if (c->json && out->status != ATTN_OK) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "problem", line);
        cJSON_AddStringToObject(o, attn_status_string(out->status), out->sentence);
        cli_print_json(o);
    } else if (c->json) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "problem", line);
        cJSON_AddStringToObject(o, "kernel", out->kernel);
        cJSON_AddNumberToObject(o, "rmse", verdict->errors.rmse);
        cJSON_AddNumberToObject(o, "rmse_once", verdict->errors.rmse_once);
        check_tell_json(o, problem->seed, verdict);
    } else if (out->status != ATTN_OK) {
        printf("  %s, %s: %s\n", attn_status_string(out->status), out->sentence, line);
    } else {
        char ratio[16] = "-";
        if (!isnan(rmse_ratio(problem, out))) {
            snprintf(ratio, sizeof ratio, "%.2f", rmse_ratio(problem, out));
        }
        printf("%9.2f %5.2f %10s  %-31s %s\n", verdict->errors.c, verdict->errors.lse, ratio,
               out->kernel, line);
        check_tell_failure(out->kernel, verdict);
    }
}

/* ---- Gradients ------------------------------------------------------------------------------- */

static void tell_gradients(const struct check *c, const problem_spec *problem, const char *line,
                           const check_grad_outcome *out)
{
    cli_progress(NULL);
    if (c->json) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "problem", line);
        cJSON_AddStringToObject(o, "kernel", out->kernel);
        if (out->status == ATTN_OK) {
            check_tell_json(o, problem->seed, &out->verdict);
        } else {
            cJSON_AddStringToObject(o, attn_status_string(out->status), out->sentence);
            cli_print_json(o);
        }
    } else if (out->status != ATTN_OK) {
        printf("  %s, %s: %s\n", attn_status_string(out->status), out->sentence, line);
    } else {
        printf("%9.2f %5s %10s  %-31s %s\n", out->verdict.grad_c, "-", "-", out->kernel, line);
        check_tell_failure(out->kernel, &out->verdict);
    }
}

static void check_gradients(struct check *c, const problem_spec *problem, const char *line)
{
    check_grad_outcome out;
    check_gpu_gradients(c->context, c->streams, c->runs, problem, &out);
    c->problems++;
    c->unsupported += out.status == ATTN_ERR_UNSUPPORTED;
    c->failed += !out.verdict.ok && out.status != ATTN_ERR_UNSUPPORTED;
    if (out.status == ATTN_OK) {
        c->worst_grad = fmax(c->worst_grad, out.verdict.grad_c / out.allowed);
    }
    tell_gradients(c, problem, line, &out);
}

/* ---- All problems ---------------------------------------------------------------------------- */

static void tell_summary(const struct check *c)
{
    printf(
        "%s: %lld problems, %lld failed, %lld unsupported, %lld on tensor cores; worst c %.2f of "
        "%.0f, worst LSE %.2f of %.0f; with probabilities of 16 bits O %.2f of its bound, RMSE "
        "%.2f of its; gradients %.2f of their bound, terms alike %.2f of theirs\n",
        c->failed == 0 ? "OK" : "FAILED", c->problems, c->failed, c->unsupported,
        c->on_tensor_cores, c->worst_c, CHECK_MAX_C, c->worst_lse, CHECK_MAX_LSE, c->worst_fast,
        c->worst_rmse, c->worst_grad, c->worst_alike);
}

int check_gpu(const cli_list *list, int64_t seeds, int64_t runs, int64_t limit, bool json)
{
    struct check c = {.runs = runs, .json = json};
    char line[4096];
    attn_status status = cli_gpu_context(&c.context);
    if (status != ATTN_OK) {
        return cli_status_error(status);
    }
    const char *failure = gpu_open();
    if (failure != NULL) {
        return cli_error(CLI_INTERNAL, "%s", failure);
    }
    c.streams[0] = gpu_stream(), c.streams[1] = gpu_stream();
    if (!json) {
        printf("%9s %5s %10s  %s\n", "c", "LSE", "x rounding", "kernel");
    }
    for (int i = 0; i < list->count; i++) {
        problem_spec problem = list->problems[i];
        problem.lse = problem.row_max = true;
        for (int64_t s = 0; s < seeds; s++) {
            struct outcome out;
            problem.seed = list->problems[i].seed + (uint64_t)s;
            problem_print(&problem, line, sizeof line);
            cli_progress("%s", line);
            gpu_task(line);
            check_limit_set(limit, json, line);
            cli_watch_start(line);
            if (problem.pass != PASS_BACKWARD) {
                run(&c, &problem, &out);
                judge(&c, &problem, &out);
                tell(&c, &problem, line, &out);
            }
            if (problem.pass != PASS_FORWARD) {
                check_gradients(&c, &problem, line);
            }
            cli_watch_stop();
        }
    }
    if (!json) {
        tell_summary(&c);
    }
    attn_context_destroy(c.context);
    return c.failed == 0 ? CLI_OK : CLI_CHECK_FAILED;
}
