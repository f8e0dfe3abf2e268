/*
 * mask.h: masks of bits and of integers on a GPU, and those of bytes whose rows are askew. Kernels
 * of attention read bytes, 16 at a time where rows begin at multiples of that; a launch before
 * theirs writes such a mask into the workspace.
 */
#ifndef ATTN_CUDA_MASK_MASK_H
#define ATTN_CUDA_MASK_MASK_H

#include "cuda/gpu.h"

/* The bytes of a mask. */
typedef struct attn_cuda_mask {
    attn_tensor from;
    uint64_t bytes; /* of the workspace; 0: the problem's mask stays as it is */
} attn_cuda_mask;

/* Puts the mask of bytes, which lies at `memory` (NULL: nowhere yet), into a problem whose mask is
 * of another type. Axes that the mask repeats are one element long. Errors: overflow. */
attn_status attn_cuda_mask_place(attn_cuda_mask *mask, attn_problem *problem, void *memory);

/* True for a mask of bytes whose rows do not all begin at multiples of 16, or whose elements lie
 * apart. */
bool attn_cuda_mask_is_askew(const attn_tensor *mask);

/* Puts one with whole rows into its place, as attn_cuda_mask_place does. */
attn_status attn_cuda_mask_align(attn_cuda_mask *mask, attn_problem *problem, void *memory);

/* Enqueues the launch that writes it. */
attn_status attn_cuda_mask_write(const attn_cuda *cuda, const attn_cuda_mask *mask,
                                 const attn_problem *problem, void *stream);

/* Where each lane of forward_sm90 is to find its bits of the problem's mask of bytes, without an
 * address: strides are those of attn_cuda_lanes, an element of axis 3 is a byte of 16 rows. Returns
 * the bytes of all; 0: making them would take longer than what is read anew for each head. */
uint64_t attn_cuda_lanes_of(const attn_cuda *cuda, const attn_problem *problem, attn_tensor *lanes);

/* Enqueues the launch that writes them. */
attn_status attn_cuda_lanes_write(const attn_cuda *cuda, const attn_tensor *mask,
                                  const attn_tensor *lanes, void *stream);

#endif
