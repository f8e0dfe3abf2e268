/*
 * append.h: new rows into the cache, and rotation of them and of Q: runs before attention.
 */
#ifndef ATTN_CPU_APPEND_H
#define ATTN_CPU_APPEND_H

#include "core/problem.h"

/* True if there is something to append or to rotate. */
static inline bool attn_cpu_appends(const attn_problem *problem)
{
    return attn_tensor_present(&problem->k_new) || attn_tensor_present(&problem->v_new) ||
           problem->rope.dims > 0;
}

/* Writes k_new and v_new to the cache, and a rotated Q to `rotated`. Returns the problem with that
 * Q. */
attn_problem attn_cpu_append(const attn_problem *problem, const attn_executor *executor,
                             void *rotated);

#endif
