/*
 * overlap.h: outputs that share memory with another tensor, as far as addresses show it. Two
 * tensors surely do if they have their first element in common, or if one has no gaps and the
 * other's first, lowest or highest element lies in it. Views that interleave, such as dQ, dK and dV
 * packed in one tensor, are never taken for overlapping ones.
 */
#ifndef ATTN_CORE_OVERLAP_H
#define ATTN_CORE_OVERLAP_H

#include "core/problem.h"

/* Of validated tensors. Absent ones and those without elements overlap nothing. */
bool attn_tensors_overlap(const attn_tensor *a, const attn_tensor *b);

/* A tensor of a list by its number, or NULL; *output: whether it is one. */
typedef const attn_tensor *attn_overlap_list(const void *user, int64_t number, bool *output);

/* Of a list's tensors 0 .. count-1, finds an output that overlaps another tensor, and that. */
bool attn_overlap_find(attn_overlap_list *list, const void *user, int64_t count, int64_t *output,
                       int64_t *other);

/* The error of two tensors that overlap. */
attn_status attn_fail_overlap(const char *output, const char *other);

/* True if elements of one normalised tensor may share memory. False if surely none do, since each
 * axis leads out of the memory of the axes with smaller strides. */
bool attn_elements_may_meet(const attn_tensor *tensor);

/* Refuses outputs of the forward pass that overlap inputs, each other or the first `bytes` bytes of
 * the workspace, and inputs that overlap the workspace. workspace may be NULL. */
attn_status attn_problem_overlaps(const attn_problem *problem, void *workspace, uint64_t bytes);

/* Refuses overlapping outputs of the backward pass. */
attn_status attn_gradients_overlaps(const attn_gradients *grads, void *workspace, uint64_t bytes);

#endif
