/*
 * test_problems.c: whole forward passes over files of problem lines, against the oracle:
 * test_problems [--every=N] FILE...
 *
 * Each problem runs with its tensors ending right before an inaccessible page and starting right
 * after one, in every way of runs.h; all bits must be equal, nothing but the outputs' elements
 * written, and the error within the bound of the contract (A1 with c = 4, A3). No cmocka: this runs
 * under emulators of other processors as well.
 */
#include "errors.h"
#include "lines.h"
#include "outputs.h"
#include "placed.h"
#include "problem.h"
#include "runs.h"
#include "tables.h"

#include <stdio.h>

static bool run_ways(problem_tensors *tensors, bool first, char *sentence, size_t size)
{
    (void)first;
    return runs_agree(&tensors->args, sentence, size);
}

static unsigned char *copy(const problem_tensors *tensors, size_t *bytes)
{
    return outputs_copy(&tensors->args, bytes);
}

static double judge(const problem_tensors *tensors, char *sentence, size_t size)
{
    return outputs_judge(&tensors->args, NULL, sentence, size);
}

static const placed_steps steps = {run_ways, copy, judge};

/* The tables with bits of their own: equal in every way of running them, and within their
 * limits. */
static bool run_own_bits(const problem_spec *problem, char *sentence, size_t size)
{
    int count;
    const char *const *names = tables_own_bits(&count);
    bool ok = true;
    for (int i = 0; ok && i < count; i++) {
        problem_tensors tensors;
        if (!problem_tensors_create(problem, PLACE_GUARD_AFTER, &tensors)) {
            snprintf(sentence, size, "no memory for its tensors");
            return false;
        }
        problem_tensors_seal(&tensors);
        ok = runs_agree_on(&tensors.args, names[i], sentence, size);
        if (ok && !problem_tensors_intact(&tensors)) {
            snprintf(sentence, size, "on %s: an input or a gap of an output was written", names[i]);
            ok = false;
        }
        ok = ok && outputs_judge(&tensors.args, names[i], sentence, size) <= 1;
        problem_tensors_free(&tensors);
    }
    return ok;
}

static bool attempt(const problem_spec *problem, double *error, char *sentence, size_t size)
{
    return placed_agree(problem, &steps, error, sentence, size) &&
           run_own_bits(problem, sentence, size);
}

int main(int argc, char **argv)
{
    return lines_main(argc, argv, PASS_FORWARD, attempt);
}
