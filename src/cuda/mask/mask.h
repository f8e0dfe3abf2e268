/*
 * mask.h: masks of bits and of integers on a GPU, and masks and biases whose rows are askew.
 * Kernels of attention read bytes of a mask, and 16 bytes at a time where rows begin at multiples
 * of that; launches before theirs write such tensors into the workspace.
 */
#ifndef ATTN_CUDA_MASK_MASK_H
#define ATTN_CUDA_MASK_MASK_H

#include "cuda/gpu.h"

/* A mask or a bias that a launch writes. */
typedef struct attn_cuda_copy {
    attn_tensor from;
    uint64_t bytes; /* of the workspace; 0: the problem's own is read */
} attn_cuda_copy;

/* In the workspace in this order. */
typedef struct attn_cuda_copies {
    attn_cuda_copy mask, bias;
} attn_cuda_copies;

/* Puts the mask of bytes, which lies at `memory` (NULL: nowhere yet), into a problem whose mask is
 * of another type. Axes that the mask repeats are one element long. Errors: overflow. */
attn_status attn_cuda_mask_place(attn_cuda_copies *copies, attn_problem *problem, void *memory);

/* True if rows of a mask of bytes or of a bias do not all begin at multiples of 16 bytes, or if
 * elements lie apart. False if elements share memory, as those of relative positions do: a copy
 * would be many times as large. */
bool attn_cuda_is_askew(const attn_problem *problem);

/* Puts such rows in order, too, instead of attn_cuda_mask_place. */
attn_status attn_cuda_align(attn_cuda_copies *copies, attn_problem *problem, void *memory);

/* Enqueues the launches that write what was placed. */
attn_status attn_cuda_copies_write(const attn_cuda *cuda, const attn_cuda_copies *copies,
                                   const attn_problem *problem, void *stream);

/* Where each lane of forward_sm90 is to find its bits of the problem's mask of bytes, without an
 * address: strides are those of attn_cuda_lanes, an element of axis 3 is a byte of 16 rows. Returns
 * the bytes of all; 0: making them would take longer than what is read anew for each head. */
uint64_t attn_cuda_lanes_of(const attn_cuda *cuda, const attn_problem *problem, attn_tensor *lanes);

/* Enqueues the launch that writes them. */
attn_status attn_cuda_lanes_write(const attn_cuda *cuda, const attn_tensor *mask,
                                  const attn_tensor *lanes, void *stream);

#endif
