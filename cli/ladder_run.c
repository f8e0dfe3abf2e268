/*
 * ladder_run.c: see ladder_run.h.
 */
#include "ladder_run.h"
#include "cli.h"
#include "oracle.h"
#include "progress.h"
#include "stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const ladder_step[LADDER_STEPS] = {"standard", "safe",  "online",
                                               "one pass", "tiles", "libattn"};
const char *const ladder_says[LADDER_STEPS] = {
    "exp(S) / sum; S and P stored",       "maximum, sum, P: three passes over S",
    "maximum and sum in one pass over S", "O follows too: no S",
    "tiles of keys serve blocks of rows", "the same with vectors and threads"};

static void (*const run_step[])(const ladder_head *) = {ladder_standard, ladder_safe, ladder_online,
                                                        ladder_one_pass, ladder_tiles};
enum { MATRIX_STEPS = 3, OWN_STEPS = LADDER_STEPS - 1, MOST_SAMPLES = 5 };

const char *ladder_refuses(const problem_spec *problem)
{
    return problem->dtype != ATTN_F32             ? "dtype other than f32"
           : problem->o_dtype != ATTN_F32         ? "o_dtype"
           : problem->b != 1 || problem->has_lens ? "more than one sequence"
           : problem->hkv != problem->hq          ? "hkv"
           : problem->layout != LAYOUT_BSHD       ? "layout"
           : problem->pass != PASS_FORWARD        ? "pass"
           : problem->has_window                  ? "a window"
           : problem->top_left                    ? "top_left"
           : problem->softcap != 0                ? "softcap"
           : problem->dropout != 0                ? "dropout"
           : problem->mask[0] != '\0'             ? "mask"
           : problem->bias[0] != '\0'             ? "bias"
           : problem->alibi[0] != '\0'            ? "alibi"
           : problem->sinks[0] != '\0'            ? "sinks"
           : problem->page > 0                    ? "page"
           : problem->has_used_q || problem->has_used_k || problem->has_leftpad ? "lengths in use"
           : problem->q_origins > 0 || problem->k_origins > 0                   ? "origins"
                                                                                : NULL;
}

/* ---- one step -------------------------------------------------------------------------------- */

/* The problem's tensors, and a head of them as rows that lie one behind the other. */
struct copies {
    problem_tensors tensors;
    ladder_head head;
    float *memory;
};

static bool make_copies(struct copies *copies, const problem_spec *problem)
{
    const int64_t q = problem->nq * problem->d, k = problem->nk * problem->d,
                  v = problem->nk * problem->dv, o = problem->nq * problem->dv;
    if (!problem_tensors_create(problem, PLACE_PLAIN, &copies->tensors)) {
        return false;
    }
    float *memory = malloc((size_t)(q + k + v + o + 1) * sizeof *memory);
    copies->memory = memory;
    copies->head = (ladder_head){
        .nq = problem->nq,
        .nk = problem->nk,
        .d = problem->d,
        .dv = problem->dv,
        .q = memory,
        .k = memory + q,
        .v = memory + q + k,
        .o = memory + q + k + v,
        .scale = problem->has_scale ? (float)problem->scale : 1 / sqrtf((float)problem->d),
        .causal = problem->causal,
    };
    if (memory == NULL) {
        problem_tensors_free(&copies->tensors);
    }
    return memory != NULL;
}

static void free_copies(struct copies *copies)
{
    free(copies->memory);
    problem_tensors_free(&copies->tensors);
}

/* Rows of head h of a tensor (1, rows, heads, columns), bshd, to or from `rows`. */
static void copy_rows(float *rows, const attn_tensor *tensor, int64_t h, bool back)
{
    const int64_t columns = tensor->shape[3];
    for (int64_t i = 0; i < tensor->shape[1]; i++) {
        float *at = (float *)tensor->data + i * tensor->stride[1] + h * tensor->stride[2];
        memcpy(back ? at : rows + i * columns, back ? rows + i * columns : at,
               (size_t)columns * sizeof *at);
    }
}

/* Runs the step on all heads once; returns its seconds alone. */
static double run_heads(struct copies *copies, int step, ladder_traffic *moved)
{
    ladder_head *head = &copies->head;
    const attn_forward_args *args = &copies->tensors.args;
    double seconds = 0;
    *moved = (ladder_traffic){0, 0};
    head->traffic = moved;
    for (int64_t h = 0; h < args->q.shape[2]; h++) {
        copy_rows((float *)head->q, &args->q, h, false);
        copy_rows((float *)head->k, &args->k, h, false);
        copy_rows((float *)head->v, &args->v, h, false);
        const double start = stats_now();
        run_step[step](head);
        seconds += stats_now() - start;
        copy_rows(head->o, &args->o, h, true);
    }
    return seconds;
}

static void measure_step(struct copies *copies, int step, ladder_result *result)
{
    double samples[MOST_SAMPLES], sum = 0;
    int count = 0;
    const int64_t numbers = copies->head.nq * copies->head.nk;
    float *matrix = NULL;
    if (step < MATRIX_STEPS) {
        result->extra = (double)numbers * sizeof *matrix;
        matrix =
            result->extra < cli_free_memory() ? malloc((size_t)numbers * sizeof *matrix + 1) : NULL;
        if (matrix == NULL) {
            return;
        }
    }
    copies->head.scores = matrix;
    while (count < MOST_SAMPLES && (count == 0 || sum < 0.5)) {
        samples[count] = run_heads(copies, step, &result->moved);
        sum += samples[count++];
    }
    free(matrix);
    result->done = true;
    result->seconds = stats_of(samples, count).median;
    errors_measure(&copies->tensors.args, 0, &result->errors);
}

static attn_status measure_library(const problem_spec *problem, struct copies *copies,
                                   ladder_result *result)
{
    attn_context *context = NULL;
    attn_plan plan = {.struct_size = sizeof plan};
    double samples[MOST_SAMPLES];
    attn_status status = problem_context(problem, &context);
    if (status == ATTN_OK) {
        status = attn_forward_plan(context, &copies->tensors.args, &plan);
    }
    for (int i = -1; i < MOST_SAMPLES && status == ATTN_OK; i++) {
        const double start = stats_now();
        status = attn_forward(context, &copies->tensors.args);
        samples[i < 0 ? 0 : i] = stats_now() - start; /* the first call warms up */
    }
    attn_context_destroy(context);
    if (status == ATTN_OK) {
        result->done = true;
        result->seconds = stats_of(samples, MOST_SAMPLES).median;
        result->extra = (double)plan.workspace_bytes;
        result->moved.read = plan.bytes_tiled;
        errors_measure(&copies->tensors.args, 0, &result->errors);
    }
    return status;
}

bool ladder_run(const problem_spec *problem, ladder_result results[LADDER_STEPS],
                attn_status *status)
{
    struct copies copies;
    memset(results, 0, LADDER_STEPS * sizeof *results);
    if (!make_copies(&copies, problem)) {
        return false;
    }
    for (int step = 0; step < OWN_STEPS; step++) {
        cli_watch_start(ladder_step[step]);
        measure_step(&copies, step, &results[step]);
        cli_watch_stop();
    }
    *status = measure_library(problem, &copies, &results[OWN_STEPS]);
    free_copies(&copies);
    return true;
}

/* ---- the flawed forms ------------------------------------------------------------------------ */

/* The first `keys` rows of K become `times` the first row of Q. */
static void raise_keys(const attn_forward_args *args, int64_t keys, float times)
{
    const float *q = args->q.data;
    for (int64_t j = 0; j < keys; j++) {
        float *k = (float *)args->k.data + j * args->k.stride[1];
        for (int64_t c = 0; c < args->q.shape[3]; c++) {
            k[c] = times * q[c];
        }
    }
}

/* Exact O and its scale, then the errors of O as it is. */
static bool judge(const attn_forward_args *args, double *error, int64_t *wrong_rows)
{
    const int64_t rows = args->o.shape[1], columns = args->o.shape[3];
    double *exact = calloc((size_t)(2 * rows * columns), sizeof *exact);
    if (exact == NULL) {
        return false;
    }
    const oracle_result result = {.o = exact, .o_abs = exact + rows * columns};
    oracle_forward(args, &result, NULL, 0);
    *error = 0, *wrong_rows = 0;
    for (int64_t i = 0; i < rows; i++) {
        bool wrong = false;
        for (int64_t c = 0; c < columns; c++) {
            const double o = oracle_element(&args->o, 0, i, 0, c),
                         scale = result.o_abs[i * columns + c];
            wrong |= !isfinite(o);
            if (isfinite(o) && scale > 0) {
                *error = fmax(*error, fabs(o - exact[i * columns + c]) / scale);
            }
        }
        *wrong_rows += wrong;
    }
    free(exact);
    return true;
}

static bool run_flaw(ladder_flaw *flaw, const char *line, void (*form)(const ladder_head *),
                     int64_t keys, float times)
{
    problem_spec problem;
    struct copies copies;
    ladder_traffic moved = {0, 0};
    char error[256];
    int64_t wrong_rows;
    if (!problem_parse(line, &problem, error, sizeof error) || !make_copies(&copies, &problem)) {
        return false;
    }
    const attn_forward_args *args = &copies.tensors.args;
    ladder_head *head = &copies.head;
    raise_keys(args, keys, times);
    copy_rows((float *)head->q, &args->q, 0, false);
    copy_rows((float *)head->k, &args->k, 0, false);
    copy_rows((float *)head->v, &args->v, 0, false);
    head->traffic = &moved;
    form(head);
    copy_rows(head->o, &args->o, 0, true);
    bool ok = judge(args, &flaw->error, &flaw->wrong_rows);
    ladder_tiles(head);
    copy_rows(head->o, &args->o, 0, true);
    ok = ok && judge(args, &flaw->right, &wrong_rows);
    flaw->right = ok && wrong_rows > 0 ? (double)INFINITY : flaw->right;
    flaw->rows = problem.nq;
    free_copies(&copies);
    return ok;
}

bool ladder_run_flaws(ladder_flaw flaws[LADDER_FLAWS])
{
    flaws[0].form = "maximum of the block at hand";
    flaws[0].input = "the first 64 keys have far larger scores than the rest";
    flaws[1].form = "1e-6 added to each block's sum";
    flaws[1].input = "the first key outweighs all others, 16384 keys";
    flaws[2].form = "no rule for rows without a key";
    flaws[2].input = "causal, 96 queries and 64 keys: the first 32 rows see none";
    return run_flaw(&flaws[0], "nq=1 nk=256 hq=1 d=64", ladder_block_maximum, 64, 16) &&
           run_flaw(&flaws[1], "nq=1 nk=16384 hq=1 d=64", ladder_epsilon, 1, 4) &&
           run_flaw(&flaws[2], "nq=96 nk=64 hq=1 d=64 causal=1", ladder_empty_row, 0, 0);
}
