/*
 * run.c: `attn run`: attention of arrays in files. The command line and the steps; run_files.h has
 * the files, run_report.c the words.
 */
#include "run_report.h"
#include "args.h"
#include "cli.h"
#include "run_files.h"
#include "standard.h"
#include "stats.h"
#include "progress.h"
#include "commands.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct run {
    const char *input[ARGS_TENSORS]; /* specs */
    array_file file[ARGS_TENSORS];
    run_output output[ARGS_TENSORS];
    attn_forward_args args;
    attn_context_config config;
    int32_t out_dtype;  /* 0: that of q */
    const char *layout; /* NULL: not given */
    bool bhsd, check, compare, json;
    run_result result;
};

/* ---- Steps ----------------------------------------------------------------------------------- */

/* q.safetensors alone means all of q, k and v. */
static void find_inputs(struct run *r)
{
    if (r->input[ARGS_Q] == NULL || r->output[ARGS_O].spec == NULL) {
        exit(cli_error(CLI_USAGE, "--q and --out are needed (see attn run --help)"));
    }
    for (int i = ARGS_K; i <= ARGS_V; i++) {
        if (r->input[i] == NULL && !run_is_bundle(r->input[ARGS_Q])) {
            exit(cli_error(CLI_USAGE,
                           "--%s is needed, unless --q is a .safetensors file with q, k and v",
                           args_tensors[i].name));
        }
        r->input[i] = r->input[i] == NULL ? r->input[ARGS_Q] : r->input[i];
    }
    run_check_outputs(r->output, r->input, ARGS_TENSORS);
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
                            args_tensors[i].name, first, second, (long long)f->shape[2], first,
                            second, first, second);
            return;
        }
    }
}

static void open_inputs(struct run *r)
{
    for (int i = 0; i < ARGS_TENSORS; i++) {
        const char *name = args_tensors[i].name;
        const array_file *f = &r->file[i];
        if (r->input[i] == NULL) {
            continue;
        }
        run_open(r->input[i], name, &r->file[i]);
        *args_at(&r->args, i) =
            args_tensors[i].kind == ARGS_VECTORS  ? run_sequences(f, r->bhsd, name)
            : args_tensors[i].kind == ARGS_SCORES ? run_scores(f, &r->args.q, name)
            : args_tensors[i].kind == ARGS_HEADS  ? run_heads(f, name)
                                                  : run_list(f, name);
    }
    if (r->layout == NULL && r->input[ARGS_CU_Q] == NULL) {
        warn_of_axes(r);
    }
}

static void make_outputs(struct run *r)
{
    attn_forward_args *a = &r->args;
    int32_t real = a->q.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32,
            own = r->out_dtype ? r->out_dtype : a->q.dtype;
    for (int i = 0; i < ARGS_TENSORS; i++) {
        if (r->output[i].spec != NULL) {
            bool rows = args_tensors[i].kind == ARGS_ROWS;
            *args_at(a, i) = run_make_output(&r->output[i], &r->file[ARGS_Q], r->bhsd,
                                             rows ? -1 : a->v.shape[3], rows ? real : own);
        }
    }
}

static attn_status compute(struct run *r, attn_context *context)
{
    r->result.plan.struct_size = sizeof r->result.plan;
    attn_status status = attn_forward_plan(context, &r->args, &r->result.plan);
    if (status == ATTN_OK) {
        cli_watch_start("computing attention");
        double start = stats_now();
        status = attn_forward(context, &r->args);
        r->result.seconds = stats_now() - start;
        cli_watch_stop();
    }
    return status;
}

/* Median seconds of calls after the first: up to five, within about half a second. context == NULL:
 * standard attention. */
static attn_status time_calls(const attn_forward_args *a, attn_context *context, int threads,
                              float *scores, double *median)
{
    enum { CALLS = 6 };
    double seconds[CALLS], total = 0;
    int count = 0;
    while (count < 2 || (count < CALLS && total < 0.5)) {
        attn_status status = ATTN_OK;
        double start = stats_now();
        if (context != NULL) {
            status = attn_forward(context, a);
        } else {
            standard_forward(a, threads, scores);
        }
        seconds[count] = stats_now() - start;
        total += seconds[count++];
        if (status != ATTN_OK) {
            return status;
        }
    }
    *median = stats_of(seconds + 1, count - 1).median;
    return ATTN_OK;
}

/* Runs standard attention on the same tensors, in f32, into memory of its own, and times ours in
 * the same way. */
static attn_status compare(struct run *r, attn_context *context)
{
    run_result *result = &r->result;
    attn_forward_args a = r->args, own;
    void *scores = NULL, *copies = NULL;
    attn_status status = ATTN_OK;
    result->compared = true;
    a.lse.data = a.row_max.data = NULL;
    result->standard_workspace = standard_workspace(&a);
    result->refused = standard_refuses(&a);
    if (result->standard_workspace > cli_free_memory()) {
        result->refused = "its matrix of scores does not fit into memory";
    }
    cli_watch_start("computing standard attention");
    if (result->refused == NULL) {
        scores = malloc((size_t)result->standard_workspace);
        a.o.data = malloc(r->output[ARGS_O].array.bytes + 1); /* O itself is done */
        result->refused = "there is no memory for it";
        if (scores != NULL && a.o.data != NULL && standard_adopt(&a, &own, &copies)) {
            result->refused = NULL;
            time_calls(&own, NULL, result->plan.threads, scores, &result->standard_seconds);
            status = time_calls(&a, context, result->plan.threads, NULL, &result->seconds);
        }
        free(a.o.data);
    }
    cli_watch_stop();
    free(copies);
    free(scores);
    return status;
}

static void check(struct run *r)
{
    cli_watch_start("comparing with float64");
    r->result.allowed = errors_allowed(r->result.plan.input_loss, r->result.plan.weight_loss);
    errors_measure(&r->args, 0, &r->result.errors);
    r->result.checked = true;
    cli_watch_stop();
}

static int run_all(struct run *r)
{
    attn_context *context = NULL;
    find_inputs(r);
    attn_status status = attn_context_create(&r->config, &context);
    if (status != ATTN_OK) {
        return cli_status_error(status);
    }
    open_inputs(r);
    make_outputs(r);
    status = compute(r, context);
    if (status == ATTN_OK && r->compare) {
        status = compare(r, context);
    }
    attn_context_destroy(context);
    if (status != ATTN_OK) {
        return cli_status_error(status);
    }
    if (r->check) {
        check(r);
    }
    int written = run_write_outputs(r->output, ARGS_TENSORS);
    if (written != CLI_OK) {
        return written;
    }
    r->result.args = &r->args;
    r->json ? run_print_json(&r->result) : run_print_text(&r->result);
    const errors *e = &r->result.errors;
    const errors_limits *allowed = &r->result.allowed;
    return r->check && !(e->c <= allowed->c && e->lse <= allowed->lse) ? CLI_CHECK_FAILED : CLI_OK;
}

/* ---- The command line ------------------------------------------------------------------------ */

/* Keys of options: files by the number of their tensor, others from OTHER on. */
enum { FILE_KEY = 256, OTHER = FILE_KEY + ARGS_TENSORS };
enum {
    CAUSAL = OTHER,
    TOP_LEFT,
    WINDOW_LEFT,
    WINDOW_RIGHT,
    SCALE,
    SOFTCAP,
    LAYOUT,
    DTYPE,
    THREADS,
    CPU,
    CHECK,
    COMPARE,
    JSON
};

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Files: PATH.npy, PATH.safetensors or PATH.safetensors:NAME", 1},
    {"q", FILE_KEY + ARGS_Q, "FILE", 0,
     "queries; a .safetensors file with q, k, v stands for all three", 1},
    {"k", FILE_KEY + ARGS_K, "FILE", 0, "keys", 1},
    {"v", FILE_KEY + ARGS_V, "FILE", 0, "values", 1},
    {"out", FILE_KEY + ARGS_O, "FILE", 0, "where O goes", 1},
    {"lse", FILE_KEY + ARGS_LSE, "FILE", 0, "where the logarithms of the rows' sums go", 1},
    {"row-max", FILE_KEY + ARGS_ROW_MAX, "FILE", 0, "where the rows' largest scores go", 1},
    {"layout", LAYOUT, "bshd|bhsd", 0, "order of the axes of q, k, v and o (default bshd)", 1},
    {"out-dtype", DTYPE, "TYPE", 0, "that of q (the default) or f32", 1},
    {NULL, 0, NULL, 0, "Scores", 2},
    {"causal", CAUSAL, NULL, 0, "key j is visible to query i if j <= i + Nk - Nq", 2},
    {"top-left", TOP_LEFT, NULL, 0, "if j <= i instead (also for windows and ALiBi)", 2},
    {"window-left", WINDOW_LEFT, "L", 0, "keys from i + Nk - Nq - L on (negative: all)", 2},
    {"window-right", WINDOW_RIGHT, "R", 0, "keys up to i + Nk - Nq + R (negative: all)", 2},
    {"scale", SCALE, "X", 0, "instead of 1/sqrt(d)", 2},
    {"softcap", SOFTCAP, "X", 0, "s = X tanh(s / X)", 2},
    {"mask", FILE_KEY + ARGS_MASK, "FILE", 0,
     "bool (b, h, q, k), true = visible; axes of 1 broadcast", 2},
    {"bias", FILE_KEY + ARGS_BIAS, "FILE", 0, "added to the scores, same axes; -inf masks", 2},
    {"alibi", FILE_KEY + ARGS_ALIBI, "FILE", 0, "slopes (h) or (b, h)", 2},
    {"sinks", FILE_KEY + ARGS_SINKS, "FILE", 0,
     "scores of one more key without a value, (h) or (b, h)", 2},
    {NULL, 0, NULL, 0, "Lengths: i32 or i64", 3},
    {"cu-seqlens-q", FILE_KEY + ARGS_CU_Q, "FILE", 0,
     "sequences as (total, h, d): where each begins, and the end", 3},
    {"cu-seqlens-k", FILE_KEY + ARGS_CU_K, "FILE", 0, "the same for k and v", 3},
    {"seqused-q", FILE_KEY + ARGS_USED_Q, "FILE", 0, "rows in use of each sequence", 3},
    {"seqused-k", FILE_KEY + ARGS_USED_K, "FILE", 0, "keys in use of each sequence", 3},
    {NULL, 0, NULL, 0, "Running", 4},
    {"threads", THREADS, "T", 0, "default: one per core", 4},
    {"cpu", CPU, "NAME", 0, "cap on the instruction set: scalar, avx2, avx512, neon, amx", 4},
    {"check", CHECK, NULL, 0, "compare with float64; exit status 1 beyond the error bound", 4},
    {"compare", COMPARE, NULL, 0, "also time standard attention with OpenBLAS", 4},
    {"json", JSON, NULL, 0, "tell as a JSON object", 4},
    {0},
};

static const char doc[] =
    "Computes O = softmax(scale Q K^T + mask) V tile by tile, without the matrix of scores, from "
    "arrays in files.\v"
    "Arrays of q, k and v have axes (b, s, h, d), (s, h, d) or (s, d), with --layout bhsd (b, h, "
    "s, d) or (h, s, d), "
    "in "
    "f64, f32, f16 or bf16. o gets the axes of q. Masks and biases with fewer than four axes "
    "broadcast as NumPy's. An "
    "output file appears whole or not at all; outputs may share a .safetensors file.\n"
    "\n"
    "Examples:\n"
    "  attn run --q samples/minilm.safetensors --out o.npy --check\n"
    "  attn run --q q.npy --k k.npy --v v.npy --out o.npy --causal --layout bhsd\n"
    "  attn run --q x.safetensors:layers.0.q --k x.safetensors:layers.0.k \\\n"
    "    --v x.safetensors:layers.0.v --out y.safetensors --lse y.safetensors";

static int32_t parse_dtype(const char *text)
{
    static const char *const names[] = {"f64", "f32", "f16", "bf16"};
    static const int32_t dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};
    for (int i = 0; i < 4; i++) {
        if (strcmp(text, names[i]) == 0) {
            return dtypes[i];
        }
    }
    exit(cli_error(CLI_USAGE, "--out-dtype=%s is none of f64, f32, f16, bf16", text));
}

static bool parse_layout(const char *text)
{
    if (strcmp(text, "bshd") != 0 && strcmp(text, "bhsd") != 0) {
        exit(cli_error(CLI_USAGE, "--layout=%s is neither bshd nor bhsd", text));
    }
    return strcmp(text, "bhsd") == 0;
}

static error_t parse_scores(int key, const char *text, attn_forward_args *a)
{
    switch (key) {
    case CAUSAL:
        a->flags |= ATTN_CAUSAL;
        return 0;
    case TOP_LEFT:
        a->flags |= ATTN_TOP_LEFT;
        return 0;
    case WINDOW_LEFT:
        a->flags |= ATTN_WINDOW;
        a->window_left = cli_integer("window-left", text, INT64_MIN, INT64_MAX);
        return 0;
    case WINDOW_RIGHT:
        a->flags |= ATTN_WINDOW;
        a->window_right = cli_integer("window-right", text, INT64_MIN, INT64_MAX);
        return 0;
    case SCALE:
        a->flags |= ATTN_SCALE;
        a->softmax_scale = cli_real("scale", text, -DBL_MAX, DBL_MAX);
        return 0;
    case SOFTCAP:
        a->softcap = cli_real("softcap", text, 0, DBL_MAX);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void parse_file(struct run *r, int tensor, const char *text)
{
    const char **spec = args_tensors[tensor].output ? &r->output[tensor].spec : &r->input[tensor];
    if (*spec != NULL) {
        exit(cli_error(CLI_USAGE, "two files for %s: \"%s\" and \"%s\"", args_tensors[tensor].name,
                       *spec, text));
    }
    *spec = text;
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct run *r = state->input;
    if (key >= FILE_KEY && key < OTHER) {
        parse_file(r, key - FILE_KEY, text);
        return 0;
    }
    switch (key) {
    case LAYOUT:
        r->layout = text;
        r->bhsd = parse_layout(text);
        return 0;
    case DTYPE:
        r->out_dtype = parse_dtype(text);
        return 0;
    case THREADS:
        r->config.threads = (int32_t)cli_integer("threads", text, 0, 1 << 20);
        return 0;
    case CPU:
        r->config.cpu = text;
        return 0;
    case CHECK:
        r->check = true;
        return 0;
    case COMPARE:
        r->compare = true;
        return 0;
    case JSON:
        r->json = true;
        return 0;
    default:
        return parse_scores(key, text, &r->args) == 0 ? 0 : cli_parse_other(key, text, state);
    }
}

int cli_run(int argc, char **argv)
{
    static const struct argp argp = {options, parse, NULL, doc, NULL, NULL, NULL};
    struct run r = {.args = {.struct_size = sizeof r.args, .window_left = -1, .window_right = -1}};
    r.config.struct_size = sizeof r.config;
    for (int i = 0; i < ARGS_TENSORS; i++) {
        r.output[i].name = args_tensors[i].name;
    }
    cli_parse(&argp, argc, argv, &r);
    if (!(r.args.flags & ATTN_WINDOW)) {
        r.args.window_left = r.args.window_right = 0;
    }
    int status = run_all(&r);
    for (int i = 0; i < ARGS_TENSORS; i++) {
        array_file_close(&r.file[i]);
        free(r.output[i].memory);
    }
    return status;
}
