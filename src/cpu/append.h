/*
 * append.h: before a step of decoding: new rows into the cache, and the rotation of them and of Q.
 */
#ifndef ATTN_CPU_APPEND_H
#define ATTN_CPU_APPEND_H

#include "core/problem.h"

/* Bytes of Q and new keys, rotated; 0 if they are not. False if they do not fit in 64 bits. */
bool attn_rotated_bytes(const attn_problem *problem, uint64_t *bytes);

/* Writes k_new and v_new to the cache, and Q to `rotated`, if it is rotated. Returns the problem
 * whose q lies there. */
attn_problem attn_cpu_append(const attn_problem *problem, const attn_executor *executor,
                             void *rotated);

#endif
