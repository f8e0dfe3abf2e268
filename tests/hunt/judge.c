/*
 * judge.c: see judge.h.
 */
#include "judge.h"
#include "alike.h"
#include "grad_errors.h"
#include "grad_runs.h"
#include "outputs.h"
#include "settle.h"
#include "tables.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 3, 4))) static bool wrong(char *sentence, size_t size,
                                                        const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(sentence, size, format, list);
    va_end(list);
    return false;
}

/* ---- one run --------------------------------------------------------------------------------- */

/* A way to run: a table, a number of threads, and the bytes that the workspace holds before. */
struct way {
    const char *table;
    int threads;
    enum runs_poison poison;
};

static const char *only; /* the table of judge_only_on, or NULL */

bool judge_only_on(const char *table)
{
    int usual, own;
    const char *const *names = tables_names(&usual);
    tables_own_bits(&own);
    for (int i = 0; i < usual + own; i++) {
        only = strcmp(names[i], table) == 0 ? names[i] : only;
    }
    return only != NULL;
}

const char *judge_draw_table(dice *d)
{
    int usual, own;
    const char *const *names = tables_names(&usual), *const *others = tables_own_bits(&own);
    const int64_t n = dice_roll(d, usual + own);
    return only ? only : n < usual ? names[n] : others[n - usual];
}

static struct way draw_way(const problem_spec *spec, dice *d, const char *own)
{
    static const int threads[] = {1, 2, 3, 7};
    int count;
    const uint64_t flags = spec->precise ? ATTN_PRECISE : 0;
    const char *const *names = tables_that_agree(spec->dtype, flags, &count);
    return (struct way){own ? own : names[dice_roll(d, count)], threads[dice_roll(d, 4)],
                        (enum runs_poison)dice_roll(d, RUNS_POISONS)};
}

/* Draws two ways to run a problem. Results of the second are judged. */
static void draw_ways(const problem_spec *spec, dice *d, const char *own, struct way way[2])
{
    way[0] = draw_way(spec, d, own), way[1] = draw_way(spec, d, own);
    way[1].table = only ? only : way[1].table;
}

static bool run(const problem_tensors *tensors, bool backward, struct way way, char *sentence,
                size_t size)
{
    return backward
               ? grad_runs_once(&tensors->grad, way.table, way.threads, way.poison, sentence, size)
               : runs_once(&tensors->args, way.table, way.threads, way.poison, sentence, size);
}

static unsigned char *copy(const problem_tensors *tensors, bool backward, size_t *bytes)
{
    return backward ? grad_runs_copy(&tensors->grad, bytes) : outputs_copy(&tensors->args, bytes);
}

/* Runs a pass in two ways, with equal bits. */
static bool run_twice(const problem_tensors *tensors, bool backward, const struct way way[2],
                      char *sentence, size_t size)
{
    size_t bytes = 0;
    if (!run(tensors, backward, way[0], sentence, size)) {
        return false;
    }
    unsigned char *first = copy(tensors, backward, &bytes);
    bool ok = run(tensors, backward, way[1], sentence, size);
    unsigned char *second = copy(tensors, backward, &bytes);
    if (ok && memcmp(first, second, bytes) != 0) {
        ok = wrong(sentence, size, "%s: %s with %d threads and %s with %d give different bits",
                   backward ? "backward" : "forward", way[0].table, way[0].threads, way[1].table,
                   way[1].threads);
    }
    free(first);
    free(second);
    return ok;
}

/* Runs the problem's pass: a backward pass after its forward pass. */
static bool run_pass(const problem_tensors *tensors, bool backward, const struct way way[2],
                     char *sentence, size_t size)
{
    return (!backward || run(tensors, false, way[1], sentence, size)) &&
           run_twice(tensors, backward, way, sentence, size);
}

/* ---- beside the oracle ----------------------------------------------------------------------- */

/* (4 + kappa) / 4 with the kappa of A1. Results beyond c = 4 are told. */
static double explained(const problem_tensors *tensors, bool backward)
{
    return 1 + alike_kappa(&tensors->args, backward, ALIKE_SEGMENTS) / 4;
}

static void tell_near(const problem_spec *spec, const char *sentence)
{
    char line[4096];
    problem_print(spec, line, sizeof line);
    printf("NEAR %s\n     %s\n", line, sentence);
}

static bool judge_on(const problem_spec *spec, dice *d, const char *own, char *sentence,
                     size_t size)
{
    problem_tensors tensors;
    const bool backward = spec->pass != PASS_FORWARD;
    struct way way[2];
    draw_ways(spec, d, own, way);
    const enum placement place = dice_one_in(d, 2) ? PLACE_GUARD_AFTER : PLACE_GUARD_BEFORE;
    if (!problem_tensors_create(spec, place, &tensors)) {
        return true; /* without memory there is no judgement */
    }
    problem_tensors_seal(&tensors);
    bool ok = run_pass(&tensors, backward, way, sentence, size);
    if (ok && !problem_tensors_intact(&tensors)) {
        ok = wrong(sentence, size, "%s: an input or a gap of an output was written", way[1].table);
    }
    if (spec->infinite > 0 && ok) {
        backward ? settle_gradients(&tensors.grad) : settle_outputs(&tensors.args);
    }
    /* f32 and f16 are sums of parts on tables with bits of their own, where an infinity is NaN */
    if (ok && !(spec->infinite > 0 && own && spec->dtype != ATTN_BF16)) {
        /* dropout rounds a probability of AMX once more (docs/numerics.md) */
        const double most = own && spec->dropout > 0 ? 2 : 1,
                     ratio = backward
                                 ? grad_runs_judge(&tensors.grad, own,
                                                   spec->inputs == INPUTS_NORMAL, sentence, size)
                                 : outputs_judge(&tensors.args, own, sentence, size);
        ok = ratio <= most * explained(&tensors, backward);
        if (ok && ratio > most) {
            tell_near(spec, sentence);
        }
    }
    problem_tensors_free(&tensors);
    return ok;
}

/* Lists tables to judge on: those with scalar's bits, then each with bits of its own for this
 * problem; or only the chosen one. */
static bool on_each_table(const problem_spec *spec, dice *d,
                          bool (*judge)(const problem_spec *spec, dice *d, const char *own,
                                        char *sentence, size_t size),
                          char *sentence, size_t size)
{
    int count;
    const char *const *own = tables_own_bits(&count);
    const bool differ = spec->dtype != ATTN_F64 && !spec->precise;
    bool ok = true, judged = false;
    for (int i = 0; ok && i < count && differ; i++) {
        if (!only || only == own[i]) {
            ok = judge(spec, d, own[i], sentence, size);
            judged = only == own[i];
        }
    }
    return ok && (judged || judge(spec, d, NULL, sentence, size));
}

bool judge_problem(const problem_spec *spec, dice *d, char *sentence, size_t size)
{
    return on_each_table(spec, d, judge_on, sentence, size);
}

/* ---- NaN among the inputs -------------------------------------------------------------------- */

/* An element that the oracle says is finite has the bits that it has without a NaN anywhere; with
 * `both`, one that is not is not. */
static bool compare(const attn_tensor *sown, const attn_tensor *clean, const double *exact,
                    bool both, const char *name, char *sentence, size_t size)
{
    int64_t at = 0;
    for (int64_t i0 = 0; sown->data && i0 < sown->shape[0]; i0++) {
        for (int64_t i1 = 0; i1 < sown->shape[1]; i1++) {
            for (int64_t i2 = 0; i2 < sown->shape[2]; i2++) {
                for (int64_t i3 = 0; i3 < sown->shape[3]; i3++, at++) {
                    const double got = oracle_element(sown, i0, i1, i2, i3),
                                 want = oracle_element(clean, i0, i1, i2, i3);
                    if (isnan(exact[at]) ? both && !isnan(got) : got != want) {
                        return wrong(sentence, size,
                                     "NaN sown: %s[%d][%d][%d][%d] = %.9g, %.9g without, oracle %g",
                                     name, (int)i0, (int)i1, (int)i2, (int)i3, got, want,
                                     exact[at]);
                    }
                }
            }
        }
    }
    return true;
}

static bool compare_outputs(const attn_forward_args *sown, const attn_forward_args *clean,
                            char *sentence, size_t size)
{
    const int64_t rows = sown->o.shape[0] * sown->o.shape[1] * sown->o.shape[2];
    double *o = calloc((size_t)(rows * (sown->o.shape[3] + 2) + 1), sizeof *o);
    const oracle_result exact = {
        .o = o, .lse = o + rows * sown->o.shape[3], .row_max = o + rows * (sown->o.shape[3] + 1)};
    oracle_forward(sown, &exact, NULL, 0);
    const bool ok =
        compare(&sown->o, &clean->o, o, true, "o", sentence, size) &&
        compare(&sown->lse, &clean->lse, exact.lse, true, "lse", sentence, size) &&
        compare(&sown->row_max, &clean->row_max, exact.row_max, true, "row_max", sentence, size);
    free(o);
    return ok;
}

/* Where P is 0 by underflow, dS is 0 though the oracle has a NaN. */
static bool compare_gradients(const attn_backward_args *sown, const attn_backward_args *clean,
                              char *sentence, size_t size)
{
    const attn_tensor *got[ORACLE_GRADIENTS], *want[ORACLE_GRADIENTS];
    oracle_gradients exact;
    bool ok = true;
    oracle_backward(sown, &exact);
    grad_errors_tensors(sown, got);
    grad_errors_tensors(clean, want);
    for (int n = 0; ok && n < ORACLE_GRADIENTS; n++) {
        const attn_tensor *t = got[n];
        const size_t count = (size_t)(t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]);
        double *values = calloc(count + 1, sizeof *values);
        for (size_t at = 0; t->data && at < count; at++) {
            values[at] = (double)exact.of[n][at];
        }
        ok = compare(t, want[n], values, false, grad_errors_name((enum oracle_gradient)n), sentence,
                     size);
        free(values);
    }
    oracle_gradients_free(&exact);
    return ok;
}

static bool judge_sown_on(const problem_spec *spec, dice *d, const char *own, char *sentence,
                          size_t size)
{
    problem_tensors sown, clean;
    problem_spec without = *spec;
    const bool backward = spec->pass != PASS_FORWARD;
    struct way way[2];
    draw_ways(spec, d, own, way);
    without.sown = 0;
    if (!problem_tensors_create(spec, PLACE_GUARD_AFTER, &sown)) {
        return true;
    }
    bool ok = true;
    if (problem_tensors_create(&without, PLACE_GUARD_BEFORE, &clean)) {
        ok = run_pass(&sown, backward, way, sentence, size) &&
             run_pass(&clean, backward, way, sentence, size);
        ok = ok && (backward ? compare_gradients(&sown.grad, &clean.grad, sentence, size)
                             : compare_outputs(&sown.args, &clean.args, sentence, size));
        problem_tensors_free(&clean);
    }
    problem_tensors_free(&sown);
    return ok;
}

bool judge_sown(const problem_spec *spec, dice *d, char *sentence, size_t size)
{
    return on_each_table(spec, d, judge_sown_on, sentence, size);
}
