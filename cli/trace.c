/*
 * trace.c: `attn trace`: the walk over tiles of a small problem, number by number: forward, split
 * keys with their merge, and backward; at the end beside the library and float64.
 */
#include "cli.h"
#include "oracle.h"
#include "trace_files.h"
#include "trace_report.h"
#include "commands.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct argp_option options[] = {
    {"rows", 'r', "N", 0, "rows of a tile (default 4)", 0},
    {"keys", 'k', "N", 0, "keys of a tile (default 4)", 0},
    {"split", 's', "N", 0, "cuts the keys into N parts, which are merged (default 1)", 0},
    {"head", 'H', "N", 0, "the head to trace (default 0)", 0},
    {"json", 'j', NULL, 0, "one JSON object for each step", 0},
    {"q", 'Q', "FILE", 0, "Q from a .npy or .safetensors file (see attn run --help)", 0},
    {"k", 'K', "FILE", 0, "K likewise", 0},
    {"v", 'V', "FILE", 0, "V likewise", 0},
    {"d-o", 'O', "FILE", 0, "dO likewise, for the backward pass", 0},
    {0},
};

enum { MOST_ROWS = 64, MOST_COLUMNS = 32, MOST_PARTS = 16 };

struct choice {
    int64_t rows, keys, split, head;
    bool json;
    trace_files files;
    cli_list list;
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct choice *choice = state->input;
    switch (key) {
    case 'r':
        choice->rows = cli_integer("rows", text, 1, MOST_ROWS);
        return 0;
    case 'k':
        choice->keys = cli_integer("keys", text, 1, MOST_ROWS);
        return 0;
    case 's':
        choice->split = cli_integer("split", text, 1, MOST_PARTS);
        return 0;
    case 'H':
        choice->head = cli_integer("head", text, 0, 1 << 20);
        return 0;
    case 'j':
        choice->json = true;
        return 0;
    case 'Q':
        choice->files.q = text;
        return 0;
    case 'K':
        choice->files.k = text;
        return 0;
    case 'V':
        choice->files.v = text;
        return 0;
    case 'O':
        choice->files.d_o = text;
        return 0;
    case ARGP_KEY_ARG:
        cli_add_problems(&choice->list, text);
        return 0;
    default:
        return cli_parse_other(key, text, state);
    }
}

/* NULL, or the reason why a problem has no trace. */
static const char *refuses(const problem_spec *problem)
{
    return problem->nq > MOST_ROWS || problem->nk > MOST_ROWS || problem->d > MOST_COLUMNS ||
                   problem->dv > MOST_COLUMNS
               ? "a trace is for small problems: at most 64 rows and keys, d and d_v of 32"
           : problem->nq < 1 || problem->nk < 1 || problem->d < 1 || problem->dv < 1
               ? "nothing to trace: nq, nk, d and dv must be at least 1"
           : problem->b != 1 || problem->has_lens || problem->has_used_q || problem->has_used_k ||
                   problem->page > 0 || problem->has_leftpad
               ? "a trace is of one sequence in full length"
           : problem->dropout != 0 || problem->sinks[0] != '\0' ? "dropout and sinks are not traced"
           : problem->pass != PASS_FORWARD && (problem->softcap != 0 || problem->hkv != problem->hq)
               ? "the backward pass is traced without softcap and with hkv = hq"
               : NULL;
}

/* ---- the numbers of a head ------------------------------------------------------------------- */

static double *numbers(const attn_tensor *tensor, int64_t h)
{
    const int64_t rows = tensor->shape[1], columns = tensor->shape[3];
    double *x = calloc((size_t)(rows * columns), sizeof *x);
    for (int64_t at = 0; x != NULL && at < rows * columns; at++) {
        x[at] = oracle_element(tensor, 0, at / columns, h, at % columns);
    }
    return x;
}

static double distance(const attn_tensor *tensor, int64_t h, const double *x)
{
    const int64_t rows = tensor->shape[1], columns = tensor->shape[3];
    double largest = 0;
    for (int64_t at = 0; at < rows * columns; at++) {
        const double y = oracle_element(tensor, 0, at / columns, h, at % columns);
        largest = y == x[at] ? largest : fmax(largest, fabs(y - x[at]));
    }
    return largest;
}

/* Every array of a trace, in one allocation. */
struct arrays {
    double *memory, *scores, *q, *k, *v, *d_o;
    trace_sums parts[MOST_PARTS], whole;
    double *weight;
    trace_grads grads;
};

static bool make_arrays(struct arrays *arrays, const problem_spec *problem,
                        const problem_tensors *tensors, const struct choice *choice)
{
    const int64_t nq = problem->nq, nk = problem->nk, sums = nq * (problem->dv + 1),
                  kv_head = choice->head / (problem->hq / problem->hkv);
    const bool backward = problem->pass != PASS_FORWARD;
    const int64_t count = nq * nk + (choice->split + 1) * sums + choice->split * nq +
                          nq * problem->d + nk * (problem->d + problem->dv);
    double *next = calloc((size_t)count, sizeof *next);
    *arrays = (struct arrays){
        .memory = next,
        .q = numbers(&tensors->args.q, choice->head),
        .k = numbers(&tensors->args.k, kv_head),
        .v = numbers(&tensors->args.v, kv_head),
        .d_o = backward ? numbers(&tensors->grad.d_o, choice->head) : NULL,
    };
    if (next == NULL || !arrays->q || !arrays->k || !arrays->v || (backward && !arrays->d_o)) {
        return false;
    }
    arrays->scores = next, next += nq * nk;
    for (int64_t i = 0; i <= choice->split; i++, next += sums) {
        *(i < choice->split ? &arrays->parts[i] : &arrays->whole) =
            (trace_sums){next, next + nq * problem->dv};
    }
    arrays->weight = next, next += choice->split * nq;
    arrays->grads = (trace_grads){next, next + nq * problem->d, next + (nq + nk) * problem->d};
    return oracle_scores(&tensors->args, 0, choice->head, arrays->scores);
}

static void free_arrays(struct arrays *arrays)
{
    free(arrays->memory), free(arrays->q), free(arrays->k), free(arrays->v), free(arrays->d_o);
}

/* ---- the trace ------------------------------------------------------------------------------- */

/* Keys of part i of `split`: whole tiles. */
static int64_t part_begin(const struct choice *choice, int64_t nk, int64_t i)
{
    const int64_t tiles = (nk + choice->keys - 1) / choice->keys;
    const int64_t key = tiles * i / choice->split * choice->keys;
    return key < nk ? key : nk;
}

static bool run_forward(const struct choice *choice, const trace_report *report,
                        struct arrays *arrays)
{
    const trace_head *head = report->head;
    const trace_listener listener = {(void *)report, trace_tell_tile, trace_tell_grad_tile};
    for (int64_t i = 0; i < choice->split; i++) {
        const int64_t first = part_begin(choice, head->nk, i),
                      end = part_begin(choice, head->nk, i + 1);
        if (choice->split > 1) {
            trace_tell_heading(report, "part %lld: keys %lld..%lld", (long long)i, (long long)first,
                               (long long)end - 1);
        }
        if (!trace_forward(head, choice->rows, choice->keys, first, end, &listener,
                           &arrays->parts[i])) {
            return false;
        }
        if (choice->split > 1) {
            trace_tell_sums(report, &arrays->parts[i]);
        }
    }
    trace_merge(head, arrays->parts, (int)choice->split, arrays->weight, &arrays->whole);
    if (choice->split > 1) {
        trace_tell_heading(report, "merge");
        trace_tell_weights(report, arrays->weight, (int)choice->split);
    }
    trace_tell_sums(report, &arrays->whole);
    return true;
}

/* Calls the library on the same problem: the outputs of the tensors. */
static attn_status run_library(const problem_spec *problem, problem_tensors *tensors)
{
    attn_context *context = NULL;
    attn_status status = problem_context(problem, &context);
    if (status == ATTN_OK) {
        status = attn_forward(context, &tensors->args);
    }
    if (status == ATTN_OK && problem->pass != PASS_FORWARD) {
        status = attn_backward(context, &tensors->grad);
    }
    attn_context_destroy(context);
    return status;
}

/* The largest distances from the library's results. */
static void compare(const trace_report *report, const problem_spec *problem,
                    const problem_tensors *tensors, const struct arrays *arrays, int64_t h)
{
    const attn_backward_args *grad = &tensors->grad;
    trace_tell_distance(report, "O of attn_forward",
                        distance(&tensors->args.o, h, arrays->whole.o));
    trace_tell_distance(report, "LSE of attn_forward",
                        distance(&tensors->args.lse, h, arrays->whole.lse));
    if (problem->pass != PASS_FORWARD) {
        trace_tell_distance(report, "dQ of attn_backward",
                            distance(&grad->dq, h, arrays->grads.dq));
        trace_tell_distance(report, "dK of attn_backward",
                            distance(&grad->dk, h, arrays->grads.dk));
        trace_tell_distance(report, "dV of attn_backward",
                            distance(&grad->dv, h, arrays->grads.dv));
    }
}

static int tell(const struct choice *choice, const problem_spec *problem, const char *line,
                problem_tensors *tensors, struct arrays *arrays)
{
    const trace_head head = {
        .nq = problem->nq,
        .nk = problem->nk,
        .d = problem->d,
        .dv = problem->dv,
        .scores = arrays->scores,
        .q = arrays->q,
        .k = arrays->k,
        .v = arrays->v,
        .d_o = arrays->d_o,
        .scale = problem->has_scale ? problem->scale : 1 / sqrt((double)problem->d),
    };
    const trace_report report = {&head, choice->json};
    const trace_listener listener = {(void *)&report, trace_tell_tile, trace_tell_grad_tile};
    trace_tell_heading(&report, "%s, head %lld: tiles of %lld rows and %lld keys", line,
                       (long long)choice->head, (long long)choice->rows, (long long)choice->keys);
    bool ok = run_forward(choice, &report, arrays);
    if (ok && problem->pass != PASS_FORWARD) {
        trace_tell_heading(&report, "backward");
        ok = trace_backward(&head, choice->rows, choice->keys, &arrays->whole, &listener,
                            &arrays->grads);
        trace_tell_grads(&report, &arrays->grads);
    }
    if (!ok) {
        return cli_error(CLI_INTERNAL, "out of memory");
    }
    const attn_status status = run_library(problem, tensors);
    if (status != ATTN_OK) {
        return cli_status_error(status);
    }
    compare(&report, problem, tensors, arrays, choice->head);
    return CLI_OK;
}

static int trace(const struct choice *choice, const problem_spec *given)
{
    problem_spec problem = *given;
    problem_tensors tensors;
    struct arrays arrays;
    char line[4096];
    const bool from_files = trace_files_given(&choice->files, problem.pass != PASS_FORWARD);
    if (from_files) {
        trace_files_shape(&choice->files, &problem);
    }
    const char *reason = refuses(&problem);
    if (reason == NULL && choice->head >= problem.hq) {
        reason = "--head is beyond the problem's heads";
    }
    if (reason != NULL) {
        return cli_error(CLI_USAGE, "attn trace: %s", reason);
    }
    problem_print(&problem, line, sizeof line);
    problem.lse = true; /* the backward pass reads it */
    if (!problem_tensors_create(&problem, PLACE_PLAIN, &tensors)) {
        return cli_error(CLI_INTERNAL, "out of memory");
    }
    if (from_files) {
        trace_files_fill(&choice->files, &tensors);
    }
    const bool made = make_arrays(&arrays, &problem, &tensors, choice);
    const int status = made ? tell(choice, &problem, line, &tensors, &arrays)
                            : cli_error(CLI_INTERNAL, "out of memory");
    free_arrays(&arrays);
    problem_tensors_free(&tensors);
    return status;
}

int cli_trace(int argc, char **argv)
{
    static const char doc[] =
        "Shows the algorithm at work on a small problem: for each tile its scores, the maximum, "
        "the factor alpha, the sums and O before and after; tiles that are skipped or partly "
        "masked; parts of the keys and their merge; the backward pass with pass=training. At the "
        "end the distance from the library's results.\v"
        "A PROBLEM is a line of words as for attn bench (see attn bench --help), or the name of a "
        "file of such lines: at most 64 rows and keys, d and d_v of 32. With numbers from files it "
        "says the rest, as causal=1: the shapes are the files'.\n"
        "\n"
        "Examples:\n"
        "  attn trace \"n=8 hq=1 d=4\"\n"
        "  attn trace \"n=8 hq=1 d=4 causal=1\" --rows 2 --keys 3\n"
        "  attn trace \"n=8 hq=1 d=4\" --split 2\n"
        "  attn trace \"n=8 hq=1 d=4 pass=training\"\n"
        "  attn trace --q q.npy --k k.npy --v v.npy \"causal=1\"";
    static const struct argp argp = {options, parse, "PROBLEM...", doc, NULL, NULL, NULL};
    struct choice choice = {.rows = 4, .keys = 4, .split = 1};
    int status = CLI_OK;
    cli_parse(&argp, argc, argv, &choice);
    if (choice.list.count == 0) {
        cli_add_problems(&choice.list, "n=8 hq=1 d=4");
    }
    for (int i = 0; i < choice.list.count && status == CLI_OK; i++) {
        status = trace(&choice, &choice.list.problems[i]);
    }
    free(choice.list.problems);
    return status;
}
