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

static attn_tensor *tensor_at(struct run *r, int i)
{
    return i < ARGS_TENSORS ? args_at(&r->args, i) : args_gradient_at(&r->grad, i - ARGS_TENSORS);
}

/* The tensor of attn_forward_args that has the axes of tensor i: itself, but for gradients. */
static int like(int i)
{
    return i < ARGS_TENSORS ? i : args_gradients[i - ARGS_TENSORS].like;
}

static attn_tensor view(const struct run *r, int i, const array_file *f)
{
    const char *name = run_name(i);
    switch (args_tensors[like(i)].kind) {
    case ARGS_VECTORS:
        return run_sequences(f, r->options.bhsd, name);
    case ARGS_ROWS:
        return run_rows(f, r->options.bhsd, name);
    case ARGS_SCORES:
        return run_scores(f, &r->args.q, name);
    case ARGS_HEADS:
        return run_heads(f, name);
    default:
        return run_list(f, name);
    }
}

/* ---- Inputs ---------------------------------------------------------------------------------- */

/* q.safetensors alone means all of q, k and v. */
static void find_inputs(struct run *r)
{
    run_options *o = &r->options;
    if (o->input[ARGS_Q] == NULL || (o->output[ARGS_O] == NULL && !o->backward)) {
        exit(cli_error(CLI_USAGE, "--q and --out are needed, or --q and a gradient's file (see "
                                  "attn run --help)"));
    }
    if (o->backward != (o->input[ARGS_TENSORS + ARGS_D_O] != NULL)) {
        exit(cli_error(CLI_USAGE, o->backward ? "gradients need --d-o"
                                              : "--d-o is given, but no gradient is asked for"));
    }
    for (int i = ARGS_K; i <= ARGS_V; i++) {
        if (o->input[i] == NULL && !run_is_bundle(o->input[ARGS_Q])) {
            exit(cli_error(CLI_USAGE,
                           "--%s is needed, unless --q is a .safetensors file with q, k and v",
                           run_name(i)));
        }
        o->input[i] = o->input[i] == NULL ? o->input[ARGS_Q] : o->input[i];
    }
    for (int i = 0; i < RUN_TENSORS; i++) {
        r->output[i] = (run_output){.spec = o->output[i], .name = run_name(i)};
    }
    run_check_outputs(r->output, o->input, RUN_TENSORS);
}

/* Axes (b or h, s, d), as NumPy's and PyTorch's users mean them, read as (s, h, d). */
static void warn_of_axes(const struct run *r)
{
    for (int i = ARGS_Q; i <= ARGS_V; i++) {
        const array_file *f = &r->file[i];
        if (f->ndim == 3 && f->shape[1] > f->shape[0]) {
            long long first = f->shape[0], second = f->shape[1];
            (void)cli_error(CLI_OK,
                            "%s (%lld, %lld, %lld) is read as %lld positions of %lld heads; "
                            "--layout bhsd reads it as %lld heads of %lld positions",
                            run_name(i), first, second, (long long)f->shape[2], first, second,
                            first, second);
            return;
        }
    }
}

static void open_inputs(struct run *r)
{
    const run_options *o = &r->options;
    r->args = o->args;
    r->grad = (attn_backward_args){.struct_size = sizeof r->grad, .forward = &r->args};
    for (int i = 0; i < RUN_TENSORS; i++) {
        if (o->input[i] != NULL) {
            run_open(o->input[i], run_name(i), &r->file[i]);
            *tensor_at(r, i) = view(r, i, &r->file[i]);
        }
    }
    if (o->layout == NULL && o->input[ARGS_CU_Q] == NULL) {
        warn_of_axes(r);
    }
}

/* ---- Outputs --------------------------------------------------------------------------------- */

/* The axes of q with v's last one, those of q without the last one, or those of an input. */
static int shape_of(const struct run *r, int i, int64_t shape[ARRAY_FILE_MAX_DIMS])
{
    const bool rows = args_tensors[like(i)].kind == ARGS_ROWS;
    const array_file *f = &r->file[i < ARGS_TENSORS ? ARGS_Q : like(i)];
    for (int n = 0; n < f->ndim; n++) {
        shape[n] = f->shape[n];
    }
    if (i == ARGS_O || i == ARGS_O_F32) {
        shape[f->ndim - 1] = r->args.v.shape[3];
    }
    return rows ? f->ndim - 1 : f->ndim;
}

static int32_t type_of(const struct run *r, int i)
{
    int32_t q = r->args.q.dtype, real = q == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    int32_t own = r->options.out_dtype != 0 ? r->options.out_dtype : q;
    return args_tensors[like(i)].kind == ARGS_ROWS || i == ARGS_O_F32 ? real
           : args_tensors[like(i)].kind == ARGS_VECTORS               ? own
                                                                      : r->file[like(i)].dtype;
}

/* The backward pass takes O, in f32 if there is a choice, and LSE. */
static bool is_wanted(const struct run *r, int i)
{
    bool halves = r->args.q.dtype == ATTN_F16 || r->args.q.dtype == ATTN_BF16;
    return r->output[i].spec != NULL ||
           (r->options.backward && (i == ARGS_O || i == ARGS_LSE || (i == ARGS_O_F32 && halves)));
}

static void make_outputs(struct run *r)
{
    for (int i = 0; i < RUN_TENSORS; i++) {
        int64_t shape[ARRAY_FILE_MAX_DIMS];
        if (!is_wanted(r, i)) {
            continue;
        }
        if (i >= ARGS_TENSORS && r->file[like(i)].data == NULL) {
            exit(cli_error(CLI_USAGE, "%s is the gradient of %s, which is not given", run_name(i),
                           run_name(like(i))));
        }
        int ndim = shape_of(r, i, shape);
        run_make_array(&r->output[i], ndim, shape, type_of(r, i));
        *tensor_at(r, i) = view(r, i, &r->output[i].array);
    }
}

/* ---- Computing ------------------------------------------------------------------------------- */

static attn_status compute(struct run *r, attn_context *context)
{
    run_result *result = &r->result;
    result->plan.struct_size = result->grad_plan.struct_size = sizeof result->plan;
    attn_status status = attn_forward_plan(context, &r->args, &result->plan);
    if (status == ATTN_OK && r->options.backward) {
        result->grad = &r->grad;
        status = attn_backward_plan(context, &r->grad, &result->grad_plan);
    }
    cli_watch_start("computing attention");
    double start = stats_now();
    status = status == ATTN_OK ? attn_forward(context, &r->args) : status;
    double middle = stats_now();
    if (status == ATTN_OK && r->options.backward) {
        status = attn_backward(context, &r->grad);
    }
    result->seconds = middle - start;
    result->grad_seconds = stats_now() - middle;
    cli_watch_stop();
    return status;
}

/* Returns an exit status. */
static int check(struct run *r)
{
    run_result *result = &r->result;
    errors_limits *allowed = &result->allowed;
    double worst = 0;
    cli_watch_start("comparing with float64");
    *allowed = errors_allowed(result->plan.input_loss, result->plan.weight_loss);
    errors_measure(&r->args, 0, &result->errors);
    if (r->options.backward) {
        grad_errors_measure(&r->grad, &result->grad_errors);
    }
    for (int n = 0; n < ORACLE_GRADIENTS; n++) {
        double c = result->grad_errors.c[n];
        worst = c <= worst ? worst : c; /* NaN stays */
    }
    result->checked = true;
    cli_watch_stop();
    const errors *e = &result->errors;
    bool ok = e->c <= allowed->c && e->lse <= allowed->lse && worst <= allowed->grad_c;
    return ok ? CLI_OK : CLI_CHECK_FAILED;
}

static int run_all(struct run *r)
{
    attn_context *context = NULL;
    find_inputs(r);
    attn_status status = attn_context_create(&r->options.config, &context);
    if (status != ATTN_OK) {
        return cli_status_error(status);
    }
    open_inputs(r);
    make_outputs(r);
    status = compute(r, context);
    if (status == ATTN_OK && r->options.compare) {
        status = run_compare(&r->args, r->output[ARGS_O].array.bytes, context, &r->result);
    }
    attn_context_destroy(context);
    if (status != ATTN_OK) {
        return cli_status_error(status);
    }
    int checked = r->options.check ? check(r) : CLI_OK;
    int written = run_write_outputs(r->output, RUN_TENSORS);
    if (written != CLI_OK) {
        return written;
    }
    r->result.args = &r->args;
    r->options.json ? run_print_json(&r->result) : run_print_text(&r->result);
    return checked;
}

int cli_run(int argc, char **argv)
{
    struct run r = {.result.seconds = 0};
    run_parse(argc, argv, &r.options);
    int status = run_all(&r);
    for (int i = 0; i < RUN_TENSORS; i++) {
        array_file_close(&r.file[i]);
        free(r.output[i].memory);
    }
    return status;
}
