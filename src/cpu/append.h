/*
 * append.h: new rows into the cache, and rotation of them and of Q: runs before attention.
 */
#ifndef ATTN_CPU_APPEND_H
#define ATTN_CPU_APPEND_H

#include "core/problem.h"

/* Writes k_new and v_new to the cache, and a rotated Q to `rotated`. Returns the problem with that
 * Q. */
attn_problem attn_cpu_append(const attn_problem *problem, const attn_executor *executor,
                             void *rotated);

#endif
