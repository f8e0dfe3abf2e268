/*
 * placed.h: a problem with its tensors right before an inaccessible page, and right after one.
 */
#ifndef TESTS_OP_PLACED_H
#define TESTS_OP_PLACED_H

#include "problem.h"

#include <stdbool.h>
#include <stddef.h>

/* Steps of a test with a problem's tensors. */
typedef struct placed_steps {
    /* Runs the pass in all ways; `first` of the two placements. false: `sentence` says why. */
    bool (*run)(problem_tensors *tensors, bool first, char *sentence, size_t size);
    /* Bytes of the results, in memory that the caller frees. */
    unsigned char *(*copy)(const problem_tensors *tensors, size_t *bytes);
    /* Error of the results as a share of the bound. */
    double (*judge)(const problem_tensors *tensors, char *sentence, size_t size);
} placed_steps;

/* Both placements: the first is judged, the second must give its bits, and neither may write an
 * input or a gap of an output. */
bool placed_agree(const problem_spec *problem, const placed_steps *steps, double *error,
                  char *sentence, size_t size);

#endif
