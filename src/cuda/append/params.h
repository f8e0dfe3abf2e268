/* params.h: arguments of the kernels of new rows and rotation, by value. C and CUDA. */
#ifndef ATTN_CUDA_APPEND_PARAMS_H
#define ATTN_CUDA_APPEND_PARAMS_H

#include "core/append.h"

/* Scale and shift of a cache of codes; data == NULL: absent. */
typedef struct attn_cuda_factors {
    attn_tensor scale, shift;
    bool given; /* inputs; else each row has its own, which the kernel writes */
} attn_cuda_factors;

typedef struct attn_cuda_append_params {
    int64_t rows; /* of all sequences, in use or not */
    attn_problem problem;
    attn_rotated rotated;
    attn_cuda_factors k, v;
} attn_cuda_append_params;

#ifdef __cplusplus
static_assert(sizeof(attn_cuda_append_params) <= 4096, "kernel parameters");
#else
_Static_assert(sizeof(attn_cuda_append_params) <= 4096, "kernel parameters");
#endif

#endif
