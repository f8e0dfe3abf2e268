/* placed.c: two placements of one problem, whose results have equal bits. */
#include "placed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Runs one placement. `bits` are those of the first one: kept there, compared with later. */
static bool agree(problem_tensors *tensors, const placed_steps *steps, unsigned char **bits,
                  double *error, char *sentence, size_t size)
{
    problem_tensors_seal(tensors);
    if (!steps->run(tensors, *bits == NULL, sentence, size)) {
        return false;
    }
    if (!problem_tensors_intact(tensors)) {
        snprintf(sentence, size, "an input or a gap of an output was written");
        return false;
    }
    size_t bytes;
    unsigned char *found = steps->copy(tensors, &bytes);
    if (*bits == NULL) {
        *bits = found;
        *error = steps->judge(tensors, sentence, size);
        return *error <= 1; /* false for NaN */
    }
    const bool equal = memcmp(*bits, found, bytes) == 0;
    free(found);
    if (!equal) {
        snprintf(sentence, size,
                 "other bits when tensors start after a page than when they end before one");
    }
    return equal;
}

bool placed_agree(const problem_spec *problem, const placed_steps *steps, double *error,
                  char *sentence, size_t size)
{
    static const enum placement places[] = {PLACE_GUARD_AFTER, PLACE_GUARD_BEFORE};
    unsigned char *bits = NULL;
    bool ok = true;
    for (int i = 0; ok && i < 2; i++) {
        problem_tensors tensors;
        if (!problem_tensors_create(problem, places[i], &tensors)) {
            snprintf(sentence, size, "no memory for its tensors");
            ok = false;
        } else {
            ok = agree(&tensors, steps, &bits, error, sentence, size);
            problem_tensors_free(&tensors);
        }
    }
    free(bits);
    return ok;
}
