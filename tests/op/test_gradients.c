/*
 * test_gradients.c: whole backward passes over files of problem lines, against the oracle:
 * test_gradients [--every=N] FILE...
 *
 * Each problem runs with its tensors ending right before an inaccessible page and starting right
 * after one, in every way of grad_runs.h; all bits must be equal, nothing but the gradients'
 * elements written, and the error within the bound of grad_runs_judge. No cmocka: this runs under
 * emulators of other processors as well.
 */
#include "grad_runs.h"
#include "lines.h"
#include "outputs.h"
#include "placed.h"
#include "problem.h"
#include "tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    if (ok && memcmp(before, after, bytes) != 0) {
        snprintf(sentence, size, "the backward pass wrote a result of the forward pass");
        ok = false;
    }
    free(before);
    free(after);
    return ok;
}

static unsigned char *copy(const problem_tensors *tensors, size_t *bytes)
{
    return grad_runs_copy(&tensors->grad, bytes);
}

static double judge(const problem_tensors *tensors, char *sentence, size_t size)
{
    return grad_runs_judge(&tensors->grad, NULL, false, sentence, size);
}

static const placed_steps steps = {run_passes, copy, judge};

static bool run_own_bits(const problem_spec *problem, char *sentence, size_t size)
{
    problem_tensors tensors;
    if (!problem_tensors_create(problem, PLACE_GUARD_AFTER, &tensors)) {
        snprintf(sentence, size, "no memory for its tensors");
        return false;
    }
    problem_tensors_seal(&tensors);
    bool ok = grad_runs_own_bits(&tensors.grad, sentence, size);
    if (ok && !problem_tensors_intact(&tensors)) {
        snprintf(sentence, size, "a table with its own bits wrote an input or a gap of an output");
        ok = false;
    }
    problem_tensors_free(&tensors);
    return ok;
}

static bool attempt(const problem_spec *problem, double *error, char *sentence, size_t size)
{
    return placed_agree(problem, &steps, error, sentence, size) &&
           run_own_bits(problem, sentence, size);
}

int main(int argc, char **argv)
{
    return lines_main(argc, argv, PASS_BACKWARD, attempt);
}
