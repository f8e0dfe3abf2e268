/*
 * append.h: where rotated rows of Q and of new keys lie, on either kind of device. Their check is
 * in append.c too.
 */
#ifndef ATTN_CORE_APPEND_H
#define ATTN_CORE_APPEND_H

#include "core/problem.h"

/* Q and new keys after their rotation: tensors without gaps, one behind the other. data == NULL:
 * there is no rotation, or no k_new. */
typedef struct attn_rotated {
    attn_tensor q, k;
    uint64_t bytes; /* of both; 0: no rotation */
} attn_rotated;

/* Lays the rotated rows of a problem out from `memory` on; NULL: for their extents only. Errors:
 * overflow. */
attn_status attn_rotated_place(const attn_problem *problem, void *memory, attn_rotated *rotated);

#endif
