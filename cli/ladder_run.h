/*
 * ladder_run.h: the steps of examples/ladder and the library's call on one problem: seconds, bytes,
 * errors; and the flawed forms on inputs that break them.
 */
#ifndef CLI_LADDER_RUN_H
#define CLI_LADDER_RUN_H

#include "errors.h"
#include "ladder.h"
#include "problem.h"

enum { LADDER_STEPS = 6, LADDER_FLAWS = 3 };

/* The names, from the first step to the library, and a few words on each. */
extern const char *const ladder_step[LADDER_STEPS], *const ladder_says[LADDER_STEPS];

typedef struct ladder_result {
    bool done;            /* false: no memory for the matrix of scores */
    double seconds;       /* median of a few calls */
    double extra;         /* bytes besides Q, K, V and O */
    ladder_traffic moved; /* of the library: attn_plan's model, all of it in `read` */
    error_stats errors;   /* beside float64 */
} ladder_result;

/* A flawed form on the input that breaks it, and the tiled step on that input. */
typedef struct ladder_flaw {
    const char *form, *input;
    int64_t rows, wrong_rows; /* wrong: some result is not finite, though it should be */
    /* largest |O - O64| / sum p |v|: of the form's finite numbers; of tiles, infinite if one of
     * theirs is not finite */
    double error, right;
} ladder_flaw;

/* Returns the word of the problem that the steps do not know, or NULL. Static string. */
const char *ladder_refuses(const problem_spec *problem);

/* Runs everything. False: no memory; else *status is the library's. */
bool ladder_run(const problem_spec *problem, ladder_result results[LADDER_STEPS],
                attn_status *status);

/* Runs the flawed forms. False: no memory. */
bool ladder_run_flaws(ladder_flaw flaws[LADDER_FLAWS]);

#endif
