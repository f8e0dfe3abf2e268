/*
 * append.h: new rows into the cache, and rotation of them and of Q, on a GPU: a launch each before
 * the attention of the same call. Private to src/cuda.
 */
#ifndef ATTN_CUDA_APPEND_H
#define ATTN_CUDA_APPEND_H

#include "core/append.h"
#include "cuda/gpu.h"

/* Enqueues the launches that the problem asks for, if any. In the current context. */
attn_status attn_cuda_append(const attn_cuda *cuda, const attn_problem *problem,
                             const attn_rotated *rotated, void *stream);

#endif
