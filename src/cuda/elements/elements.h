/*
 * elements.h: attn_quantize, attn_dequantize and attn_dropout_mask on a GPU. Private to src/cuda.
 */
#ifndef ATTN_CUDA_ELEMENTS_ELEMENTS_H
#define ATTN_CUDA_ELEMENTS_ELEMENTS_H

#include "cuda/gpu.h"

/* Enqueue the work on the stream: a launch, or two where scales are found. Tensors have elements.
 * device: an attn_cuda. Errors: overflow, device. */
attn_status attn_cuda_quantize(const void *device, const attn_quantized *t, void *stream);
attn_status attn_cuda_dequantize(const void *device, const attn_quantized *t, void *stream);
attn_status attn_cuda_dropout_mask(const void *device, const attn_dropout_problem *problem,
                                   void *stream);

#endif
