/*
 * test_gradients.c: whole backward passes over files of problem lines, against the oracle:
 * test_gradients FILE...
 *
 * Each problem runs with its tensors ending right before an inaccessible page and starting right
 * after one, in every way of grad_runs.h; all bits must be equal, nothing but the gradients'
 * elements written, and the error within the bound of grad_runs_judge. No cmocka: this runs under
 * emulators of other processors as well.
 */
#include "faults.h"
#include "grad_runs.h"
#include "outputs.h"
#include "problem.h"
#include "tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tally {
    int problems, failures;
    double worst;
    char worst_line[1024];
};

/* o and lse by the library's own forward pass, then all backward passes, or one with each table. */
static bool run_passes(problem_tensors *tensors, bool all, char *sentence, size_t size)
{
    size_t bytes;
    if (!runs_once(&tensors->args, tables_usual(), 2, RUNS_NOISE, sentence, size)) {
        return false;
    }
    unsigned char *before = outputs_copy(&tensors->args, &bytes);
    bool ok = (all ? grad_runs_agree : grad_runs_tables_agree)(&tensors->grad, sentence, size);
    unsigned char *after = outputs_copy(&tensors->args, &bytes);
    if (ok && (memcmp(before, after, bytes) != 0 || !problem_tensors_intact(tensors))) {
        snprintf(sentence, size, "an input or a gap of an output was written");
        ok = false;
    }
    free(before);
    free(after);
    return ok;
}

/* Both placements; the second must give the bits of the first. Judged once. */
static bool run_problem(const problem_spec *problem, double *error, char *sentence, size_t size)
{
    unsigned char *first = NULL;
    bool ok = true;
    for (int n = 0; ok && n < 2; n++) {
        problem_tensors tensors;
        if (!problem_tensors_create(problem, n == 0 ? PLACE_GUARD_AFTER : PLACE_GUARD_BEFORE,
                                    &tensors)) {
            snprintf(sentence, size, "no memory for its tensors");
            ok = false;
            break;
        }
        ok = run_passes(&tensors, n == 0, sentence, size);
        size_t bytes;
        unsigned char *bits = grad_runs_copy(&tensors.grad, &bytes);
        if (ok && first == NULL) {
            *error = grad_runs_judge(&tensors.grad, NULL, sentence, size);
            ok = *error <= 1; /* false for NaN */
            first = bits;
        } else {
            if (ok && memcmp(first, bits, bytes) != 0) {
                snprintf(
                    sentence, size,
                    "other bits when tensors start after a page than when they end before one");
                ok = false;
            }
            free(bits);
        }
        problem_tensors_free(&tensors);
    }
    free(first);
    return ok;
}

static bool run_own_bits(const problem_spec *problem, char *sentence, size_t size)
{
    problem_tensors tensors;
    if (!problem_tensors_create(problem, PLACE_GUARD_AFTER, &tensors)) {
        snprintf(sentence, size, "no memory for its tensors");
        return false;
    }
    bool ok = grad_runs_own_bits(&tensors.grad, sentence, size);
    if (ok && !problem_tensors_intact(&tensors)) {
        snprintf(sentence, size, "a table with its own bits wrote an input or a gap of an output");
        ok = false;
    }
    problem_tensors_free(&tensors);
    return ok;
}

static bool visit(void *user, const problem_spec *given)
{
    struct tally *tally = user;
    problem_spec problem = *given;
    char sentence[512] = "";
    double error = 0;
    problem.pass = PASS_BACKWARD;
    problem.lse = true;
    problem_print(&problem, faults_line, sizeof faults_line);
    tally->problems++;
    if (!run_problem(&problem, &error, sentence, sizeof sentence) ||
        !run_own_bits(&problem, sentence, sizeof sentence)) {
        printf("FAIL %s\n     %s\n", faults_line, sentence);
        tally->failures++;
    } else if (error > tally->worst) {
        tally->worst = error;
        snprintf(tally->worst_line, sizeof tally->worst_line, "%.1000s", faults_line);
    }
    return true;
}

int main(int argc, char **argv)
{
    int tables, failures = argc < 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    faults_watch();
    (void)tables_names(&tables);
    for (int i = 1; i < argc; i++) {
        struct tally tally = {0};
        char error[512];
        if (!problem_suite(argv[i], visit, &tally, error, sizeof error)) {
            printf("FAIL %s\n", error);
            tally.failures++;
        }
        printf("%s: %d problems on %d tables, %d failed; worst error %.3f of the bound%s%s\n",
               argv[i], tally.problems, tables, tally.failures, tally.worst,
               tally.worst_line[0] ? " in " : "", tally.worst_line);
        failures += tally.failures + (tally.problems == 0);
    }
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
