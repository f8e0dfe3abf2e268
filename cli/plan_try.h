/*
 * plan_try.h: attn_forward on this machine with item sizes of one's choice, timed: to see whether
 * the tiles that an analysis prefers are the faster ones.
 */
#ifndef CLI_PLAN_TRY_H
#define CLI_PLAN_TRY_H

#include "problem.h"

/* Times items of rows[0 .. *count - 1] rows (query x group + head), upwards, on one thread: median
 * seconds of some calls, all sizes in turn. Sizes that the library has not are replaced by those
 * nearest, once each. False with a status, or with ATTN_OK: out of memory. */
bool plan_try(const problem_spec *problem, int64_t *rows, int *count, double *seconds,
              attn_status *status);

#endif
