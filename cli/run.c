/*
 * run.c: `attn run`: attention of arrays in files, and its gradients. The steps; run_options.h has
 * the command line, run_files.h the files, run_report.h the words.
 */
#include "args.h"
#include "cli.h"
#include "commands.h"
#include "progress.h"
#include "run_compare.h"
#include "run_files.h"
#include "run_options.h"
#include "run_report.h"
#include "stats.h"

#include <stdio.h>
#include <stdlib.h>

struct run {
    run_options options;
    array_file file[RUN_TENSORS];
    run_output output[RUN_TENSORS];
    attn_forward_args args;
    attn_backward_args grad;
    run_result result;
};

static attn_tensor *tensor_at(struct run *run, int i)
{
    return i < ARGS_TENSORS ? args_at(&run->args, i)
                            : args_gradient_at(&run->grad, i - ARGS_TENSORS);
}

/* The tensor of attn_forward_args that has the axes of tensor i: itself, but for gradients. */
static int like(int i)
{
    return i < ARGS_TENSORS ? i : args_gradients[i - ARGS_TENSORS].like;
}

static attn_tensor view(const struct run *run, int i, const array_file *file)
{
    const char *name = run_name(i);
    switch (args_tensors[like(i)].kind) {
    case ARGS_VECTORS:
        return run_sequences(file, run->options.bhsd, name);
    case ARGS_ROWS:
        return run_rows(file, run->options.bhsd, name);
    case ARGS_SCORES:
        return run_scores(file, &run->args.q, name);
    case ARGS_HEADS:
        return run_heads(file, name);
    default:
        return run_list(file, name);
    }
}

/* ---- Inputs ---------------------------------------------------------------------------------- */

/* q.safetensors alone means all of q, k and v. */
static void find_inputs(struct run *run)
{
    run_options *chosen = &run->options;
    if (chosen->input[ARGS_Q] == NULL || (chosen->output[ARGS_O] == NULL && !chosen->backward)) {
        exit(cli_error(CLI_USAGE, "--q and --out are needed, or --q and a gradient's file (see "
                                  "attn run --help)"));
    }
    if (chosen->backward != (chosen->input[ARGS_TENSORS + ARGS_D_O] != NULL)) {
        exit(cli_error(CLI_USAGE, chosen->backward
                                      ? "gradients need --d-o"
                                      : "--d-o is given, but no gradient is asked for"));
    }
    for (int i = ARGS_K; i <= ARGS_V; i++) {
        if (chosen->input[i] == NULL && !run_is_bundle(chosen->input[ARGS_Q])) {
            exit(cli_error(CLI_USAGE,
                           "--%s is needed, unless --q is a .safetensors file with q, k and v",
                           run_name(i)));
        }
        chosen->input[i] = chosen->input[i] == NULL ? chosen->input[ARGS_Q] : chosen->input[i];
    }
    for (int i = 0; i < RUN_TENSORS; i++) {
        run->output[i] = (run_output){.spec = chosen->output[i], .name = run_name(i)};
    }
    run_check_outputs(run->output, chosen->input, RUN_TENSORS);
}

/* Axes (b or h, s, d), as NumPy's and PyTorch's users mean them, read as (s, h, d). */
static void warn_of_axes(const struct run *run)
{
    for (int i = ARGS_Q; i <= ARGS_V; i++) {
        const array_file *file = &run->file[i];
        if (file->ndim == 3 && file->shape[1] > file->shape[0]) {
            long long first = file->shape[0], second = file->shape[1];
            (void)cli_error(CLI_OK,
                            "%s (%lld, %lld, %lld) is read as %lld positions of %lld heads; "
                            "--layout bhsd reads it as %lld heads of %lld positions",
                            run_name(i), first, second, (long long)file->shape[2], first, second,
                            first, second);
            return;
        }
    }
}

static void open_inputs(struct run *run)
{
    const run_options *chosen = &run->options;
    run->args = chosen->args;
    run->grad = (attn_backward_args){.struct_size = sizeof run->grad, .forward = &run->args};
    for (int i = 0; i < RUN_TENSORS; i++) {
        if (chosen->input[i] != NULL) {
            run_open(chosen->input[i], run_name(i), &run->file[i]);
            *tensor_at(run, i) = view(run, i, &run->file[i]);
        }
    }
    if (chosen->layout == NULL && chosen->input[ARGS_CU_Q] == NULL) {
        warn_of_axes(run);
    }
}

/* ---- Outputs --------------------------------------------------------------------------------- */

/* The axes of q with v's last one, those of q without the last one, or those of an input. */
static int shape_of(const struct run *run, int i, int64_t shape[ARRAY_FILE_MAX_DIMS])
{
    const bool rows = args_tensors[like(i)].kind == ARGS_ROWS;
    const array_file *file = &run->file[i < ARGS_TENSORS ? ARGS_Q : like(i)];
    for (int n = 0; n < file->ndim; n++) {
        shape[n] = file->shape[n];
    }
    if (i == ARGS_O || i == ARGS_O_F32) {
        shape[file->ndim - 1] = run->args.v.shape[3];
    }
    return rows ? file->ndim - 1 : file->ndim;
}

static int32_t type_of(const struct run *run, int i)
{
    int32_t q = run->args.q.dtype, real = q == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    int32_t own = run->options.out_dtype != 0 ? run->options.out_dtype : q;
    return args_tensors[like(i)].kind == ARGS_ROWS || i == ARGS_O_F32 ? real
           : args_tensors[like(i)].kind == ARGS_VECTORS               ? own
                                                                      : run->file[like(i)].dtype;
}

/* The backward pass takes O, in f32 if there is a choice, and LSE. */
static bool is_wanted(const struct run *run, int i)
{
    bool halves = run->args.q.dtype == ATTN_F16 || run->args.q.dtype == ATTN_BF16;
    return run->output[i].spec != NULL ||
           (run->options.backward && (i == ARGS_O || i == ARGS_LSE || (i == ARGS_O_F32 && halves)));
}

static void make_outputs(struct run *run)
{
    for (int i = 0; i < RUN_TENSORS; i++) {
        int64_t shape[ARRAY_FILE_MAX_DIMS];
        if (!is_wanted(run, i)) {
            continue;
        }
        if (i >= ARGS_TENSORS && run->file[like(i)].data == NULL) {
            exit(cli_error(CLI_USAGE, "%s is the gradient of %s, which is not given", run_name(i),
                           run_name(like(i))));
        }
        int ndim = shape_of(run, i, shape);
        run_make_array(&run->output[i], ndim, shape, type_of(run, i));
        *tensor_at(run, i) = view(run, i, &run->output[i].array);
    }
}

/* ---- Computing ------------------------------------------------------------------------------- */

static attn_status compute(struct run *run, attn_context *context)
{
    run_result *result = &run->result;
    result->plan.struct_size = result->grad_plan.struct_size = sizeof result->plan;
    attn_status status = attn_forward_plan(context, &run->args, &result->plan);
    if (status == ATTN_OK && run->options.backward) {
        result->grad = &run->grad;
        status = attn_backward_plan(context, &run->grad, &result->grad_plan);
    }
    cli_watch_start("computing attention");
    double start = stats_now();
    status = status == ATTN_OK ? attn_forward(context, &run->args) : status;
    double middle = stats_now();
    if (status == ATTN_OK && run->options.backward) {
        status = attn_backward(context, &run->grad);
    }
    result->seconds = middle - start;
    result->grad_seconds = stats_now() - middle;
    cli_watch_stop();
    return status;
}

/* Returns an exit status. */
static int check(struct run *run)
{
    run_result *result = &run->result;
    errors_limits *allowed = &result->allowed;
    double worst = 0;
    cli_watch_start("comparing with float64");
    *allowed = errors_allowed(result->plan.input_loss, result->plan.weight_loss);
    errors_measure(&run->args, 0, &result->errors);
    if (run->options.backward) {
        grad_errors_measure(&run->grad, &result->grad_errors);
    }
    for (int n = 0; n < ORACLE_GRADIENTS; n++) {
        double c = result->grad_errors.c[n];
        worst = c <= worst ? worst : c; /* NaN stays */
    }
    result->checked = true;
    cli_watch_stop();
    const error_stats *errors = &result->errors;
    bool ok = errors->c <= allowed->c && errors->lse <= allowed->lse && worst <= allowed->grad_c;
    return ok ? CLI_OK : CLI_CHECK_FAILED;
}

static int run_all(struct run *run)
{
    attn_context *context = NULL;
    find_inputs(run);
    attn_status status = attn_context_create(&run->options.config, &context);
    if (status != ATTN_OK) {
        return cli_status_error(status);
    }
    open_inputs(run);
    make_outputs(run);
    status = compute(run, context);
    if (status == ATTN_OK && run->options.compare) {
        status = run_compare(&run->args, run->output[ARGS_O].array.bytes, context, &run->result);
    }
    attn_context_destroy(context);
    if (status != ATTN_OK) {
        return cli_status_error(status);
    }
    int checked = run->options.check ? check(run) : CLI_OK;
    int written = run_write_outputs(run->output, RUN_TENSORS);
    if (written != CLI_OK) {
        return written;
    }
    run->result.args = &run->args;
    run->options.json ? run_print_json(&run->result) : run_print_text(&run->result);
    return checked;
}

int cli_run(int argc, char **argv)
{
    struct run run = {.result.seconds = 0};
    run_parse(argc, argv, &run.options);
    int status = run_all(&run);
    for (int i = 0; i < RUN_TENSORS; i++) {
        array_file_close(&run.file[i]);
        free(run.output[i].memory);
    }
    return status;
}
