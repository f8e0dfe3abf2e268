/*
 * starts.h: cu_seqlens of a backward pass on a GPU, put in order. They lie in the GPU's memory, so
 * nobody has looked at them, but blocks wait for each other's turns by where sequences begin:
 * starts that decrease would have them wait for ever.
 */
#ifndef ATTN_CUDA_STARTS_STARTS_H
#define ATTN_CUDA_STARTS_STARTS_H

#include "cuda/gpu.h"

/* Bytes of the starts of a problem; 0 without cu_seqlens. */
uint64_t attn_cuda_starts_bytes(const attn_problem *problem);

/* Enqueues the launch that writes them to `memory`, each the largest so far and cut to the rows
 * that there are, and puts them into the problem. Nothing without cu_seqlens. */
attn_status attn_cuda_starts_order(const attn_cuda *cuda, attn_problem *problem, void *memory,
                                   void *stream);

#endif
