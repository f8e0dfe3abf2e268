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
#include "problem.h"
#include "runs.h"
#include "tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        ok = runs_agree(&tensors.args, sentence, size);
        if (ok && !problem_tensors_intact(&tensors)) {
            snprintf(sentence, size, "an input or a gap of an output was written");
            ok = false;
        }
        size_t bytes;
        unsigned char *bits = outputs_copy(&tensors.args, &bytes);
        if (ok && first == NULL) {
            *error = outputs_judge(&tensors.args, NULL, sentence, size);
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
    return run_problem(problem, error, sentence, size) && run_own_bits(problem, sentence, size);
}

int main(int argc, char **argv)
{
    return lines_main(argc, argv, PASS_FORWARD, attempt);
}
