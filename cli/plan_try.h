/*
 * plan_try.h: attn_forward on this machine with chosen item sizes, timed: it shows whether the
 * tiles that an analysis prefers are the faster ones.
 */
#ifndef CLI_PLAN_TRY_H
#define CLI_PLAN_TRY_H

#include "problem.h"

/* Times items of rows[0 .. *count - 1] rows (query x group + head), upwards, on one thread: median
 * seconds of some calls, all sizes in turn. Replaces sizes that the library lacks by the nearest
 * ones, once each. False with a status; with ATTN_OK: out of memory. */
bool plan_try(const problem_spec *problem, int64_t *rows, int *count, double *seconds,
              attn_status *status);

#endif
