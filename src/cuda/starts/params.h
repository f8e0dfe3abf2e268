/* params.h: arguments of the kernel of starts, by value. C and CUDA. */
#ifndef ATTN_CUDA_STARTS_PARAMS_H
#define ATTN_CUDA_STARTS_PARAMS_H

#include "core/problem.h"

/* The starts of sequences in Q and in K, and the one behind the last. */
typedef struct attn_cuda_starts_params {
    attn_tensor from[2], rows[2]; /* cu_seqlens, and what they count rows of */
    int64_t *to[2];
    int64_t count;
} attn_cuda_starts_params;

#endif
