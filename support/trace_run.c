/*
 * trace_run.c: see trace_run.h.
 */
#include "trace_run.h"
#include "codes.h"
#include "oracle.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

const char *trace_refuses(const trace_choice *choice, const problem_spec *problem)
{
    return problem->nq > TRACE_MOST_ROWS || problem->nk > TRACE_MOST_ROWS ||
                   problem->d > TRACE_MOST_COLUMNS || problem->dv > TRACE_MOST_COLUMNS
               ? "a trace is for small problems: at most 64 rows and keys, d and d_v of 32"
           : problem->nq < 1 || problem->nk < 1 || problem->d < 1 || problem->dv < 1
               ? "nothing to trace: nq, nk, d and dv must be at least 1"
           : problem->b != 1 || problem->has_lens || problem->has_used_q || problem->has_used_k ||
                   problem->page > 0 || problem->has_leftpad
               ? "a trace is of one sequence in full length"
           : problem->dropout != 0 || problem->sinks[0] != '\0' ? "dropout and sinks are not traced"
           : problem->pass != PASS_FORWARD && (problem->softcap != 0 || problem->hkv != problem->hq)
               ? "the backward pass is traced without softcap and with hkv = hq"
           : choice->head >= problem->hq ? "--head is beyond the problem's heads"
                                         : NULL;
}

/* ---- the numbers of a head ------------------------------------------------------------------- */

/* scale, shift: those of codes; NULL: the tensor has none. */
static double *numbers(const attn_tensor *tensor, const attn_tensor *scale,
                       const attn_tensor *shift, int64_t h)
{
    const bool codes = scale != NULL && codes_type(tensor->dtype);
    const int64_t rows = tensor->shape[1],
                  columns = tensor->shape[3] * (codes ? codes_columns(tensor->dtype) : 1);
    double *x = calloc((size_t)(rows * columns), sizeof *x);
    for (int64_t at = 0; x != NULL && at < rows * columns; at++) {
        const int64_t row[3] = {0, at / columns, h}, c = at % columns;
        x[at] = codes ? codes_value(tensor, scale, shift, row, c)
                      : oracle_element(tensor, 0, row[1], h, c);
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

/* Allocates all arrays of a trace at once. */
struct arrays {
    double *memory, *scores, *q, *k, *v, *d_o;
    trace_sums parts[TRACE_MOST_PARTS], whole;
    double *weight;
    trace_grads grads;
};

static bool make_arrays(struct arrays *arrays, const problem_spec *problem,
                        const problem_tensors *tensors, const trace_choice *choice)
{
    const int64_t nq = problem->nq, nk = problem->nk, sums = nq * (problem->dv + 1),
                  kv_head = choice->head / (problem->hq / problem->hkv);
    const attn_forward_args *args = &tensors->args;
    const bool backward = problem->pass != PASS_FORWARD;
    const int64_t count = nq * nk + (choice->split + 1) * sums + choice->split * nq +
                          nq * problem->d + nk * (problem->d + problem->dv);
    double *next = calloc((size_t)count, sizeof *next);
    *arrays = (struct arrays){
        .memory = next,
        .q = numbers(&args->q, NULL, NULL, choice->head),
        .k = numbers(&args->k, &args->k_scale, &args->k_shift, kv_head),
        .v = numbers(&args->v, &args->v_scale, &args->v_shift, kv_head),
        .d_o = backward ? numbers(&tensors->grad.d_o, NULL, NULL, choice->head) : NULL,
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

struct run {
    const trace_choice *choice;
    const problem_spec *problem;
    const problem_tensors *tensors;
    const trace_teller *teller;
    trace_report report;
    struct arrays *arrays;
};

__attribute__((format(printf, 2, 3))) static void tell_heading(const struct run *run,
                                                               const char *format, ...)
{
    char text[4200];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    run->teller->heading(&run->report, text);
}

/* The first key of part i. Parts are whole tiles. */
static int64_t part_begin(const trace_choice *choice, int64_t nk, int64_t i)
{
    const int64_t tiles = (nk + choice->keys - 1) / choice->keys;
    const int64_t key = tiles * i / choice->split * choice->keys;
    return key < nk ? key : nk;
}

static bool run_forward(const struct run *run, const trace_listener *listener)
{
    const trace_choice *choice = run->choice;
    const trace_head *head = run->report.head;
    struct arrays *arrays = run->arrays;
    for (int64_t i = 0; i < choice->split; i++) {
        const int64_t first = part_begin(choice, head->nk, i),
                      end = part_begin(choice, head->nk, i + 1);
        if (choice->split > 1) {
            tell_heading(run, "part %lld: keys %lld..%lld", (long long)i, (long long)first,
                         (long long)end - 1);
        }
        if (!trace_forward(head, choice->rows, choice->keys, first, end, listener,
                           &arrays->parts[i])) {
            return false;
        }
        if (choice->split > 1) {
            run->teller->sums(&run->report, &arrays->parts[i]);
        }
    }
    trace_merge(head, arrays->parts, (int)choice->split, arrays->weight, &arrays->whole);
    if (choice->split > 1) {
        tell_heading(run, "merge");
        run->teller->weights(&run->report, arrays->weight, (int)choice->split);
    }
    run->teller->sums(&run->report, &arrays->whole);
    return true;
}

/* Calls the library on the problem; results go to the outputs of its tensors. */
static attn_status run_library(const problem_spec *problem, const problem_tensors *tensors)
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

static void compare(const struct run *run)
{
    const struct arrays *arrays = run->arrays;
    const attn_forward_args *args = &run->tensors->args;
    const attn_backward_args *grad = &run->tensors->grad;
    const struct {
        const char *what;
        const attn_tensor *tensor;
        const double *x;
    } results[] = {
        {"O of attn_forward", &args->o, arrays->whole.o},
        {"LSE of attn_forward", &args->lse, arrays->whole.lse},
        {"dQ of attn_backward", &grad->dq, arrays->grads.dq},
        {"dK of attn_backward", &grad->dk, arrays->grads.dk},
        {"dV of attn_backward", &grad->dv, arrays->grads.dv},
    };
    for (int i = 0; i < (run->problem->pass != PASS_FORWARD ? 5 : 2); i++) {
        run->teller->distance(&run->report, results[i].what,
                              distance(results[i].tensor, run->choice->head, results[i].x));
    }
}

static attn_status tell(struct run *run, const char *line)
{
    const problem_spec *problem = run->problem;
    const struct arrays *arrays = run->arrays;
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
    run->report.head = &head;
    const trace_listener listener = {&run->report, run->teller->tile, run->teller->grad_tile};
    tell_heading(run, "%s, head %lld: tiles of %lld rows and %lld keys", line,
                 (long long)run->choice->head, (long long)run->choice->rows,
                 (long long)run->choice->keys);
    bool ok = run_forward(run, &listener);
    if (ok && problem->pass != PASS_FORWARD) {
        tell_heading(run, "backward");
        ok = trace_backward(&head, run->choice->rows, run->choice->keys, &arrays->whole, &listener,
                            &arrays->grads);
        run->teller->grads(&run->report, &arrays->grads);
    }
    const attn_status status = ok ? run_library(problem, run->tensors) : ATTN_ERR_OUT_OF_MEMORY;
    if (status == ATTN_OK) {
        compare(run);
    }
    return status;
}

attn_status trace_run(const trace_choice *choice, const problem_spec *given,
                      const trace_teller *teller, FILE *to)
{
    problem_spec problem = *given;
    problem_tensors tensors;
    struct arrays arrays;
    char line[4096];
    problem_print(given, line, sizeof line);
    problem.lse = true; /* input of the backward pass */
    if (!problem_tensors_create(&problem, PLACE_PLAIN, &tensors)) {
        return ATTN_ERR_OUT_OF_MEMORY;
    }
    if (choice->fill != NULL) {
        choice->fill(choice->source, &tensors);
    }
    struct run run = {choice, &problem, &tensors, teller, {NULL, to}, &arrays};
    const bool made = make_arrays(&arrays, &problem, &tensors, choice);
    const attn_status status = made ? tell(&run, line) : ATTN_ERR_OUT_OF_MEMORY;
    free_arrays(&arrays);
    problem_tensors_free(&tensors);
    return status;
}
