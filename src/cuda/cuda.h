/*
 * cuda.h: the GPU as src/api sees it. In a build without GPU kernels absent.c answers.
 */
#ifndef ATTN_CUDA_CUDA_H
#define ATTN_CUDA_CUDA_H

#include "core/backend.h"

/* A GPU with its kernels loaded. Immutable. */
typedef struct attn_cuda attn_cuda;

/* Errors: unsupported (no driver, no such GPU, no kernels in this build), out of memory, device. */
attn_status attn_cuda_create(attn_cuda **cuda, int32_t ordinal, const attn_allocator *allocator);
void attn_cuda_destroy(attn_cuda *cuda, const attn_allocator *allocator);

/* A GPU's operations; `device` is an attn_cuda. */
extern const attn_backend attn_cuda_backend;

/* The GPU's name and features, one line. */
const char *attn_cuda_name(const attn_cuda *cuda);

/* Enqueues the forward pass on the call's stream: no allocation, no copy, no synchronisation. The
 * workspace is aligned to 64, its size is that before aligning. Errors: unsupported, workspace,
 * device. */
attn_status attn_cuda_forward(const attn_cuda *cuda, const attn_problem *problem,
                              const attn_call *call);

/* Fills the plan, without threads and widths of vectors. */
attn_status attn_cuda_plan_forward(const attn_cuda *cuda, const attn_problem *problem,
                                   attn_plan *plan);

/* The same of the backward pass. Errors of the call: unsupported, overflow, workspace (too small,
 * or none), device. */
attn_status attn_cuda_backward(const attn_cuda *cuda, const attn_gradients *grads,
                               const attn_call *call);
attn_status attn_cuda_plan_backward(const attn_cuda *cuda, const attn_gradients *grads,
                                    attn_plan *plan);

#endif
