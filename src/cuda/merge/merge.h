/*
 * merge.h: attn_merge and its gradients on a GPU.
 */
#ifndef ATTN_CUDA_MERGE_MERGE_H
#define ATTN_CUDA_MERGE_MERGE_H

#include "cuda/gpu.h"

/* Enqueue the work on the stream of *args. device: an attn_cuda. Errors: unsupported (too many
 * parts), device. */
attn_status attn_cuda_merge(const void *device, const attn_merge_args *args);
attn_status attn_cuda_merge_backward(const void *device, const attn_merge_backward_args *args);

/* Enqueues *to = *from, rounded to the type of *to: a merge of one part. Shapes are equal. */
attn_status attn_cuda_round(const attn_cuda *cuda, const attn_tensor *to, const attn_tensor *from,
                            void *stream);

#endif
