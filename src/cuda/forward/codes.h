/* codes.h: arguments of the forward pass's kernels for quantised K and V, by value. C and CUDA. */
#ifndef ATTN_CUDA_CODES_H
#define ATTN_CUDA_CODES_H

#include "cuda/params.h"

/* Scales and shifts stand beside the arguments that all kernels have: those of an attn_problem are
 * addresses of the host's. */
typedef struct attn_cuda_codes_params {
    attn_cuda_forward_params forward;
    attn_tensor k_scale, k_shift, v_scale, v_shift; /* data == NULL: absent */
} attn_cuda_codes_params;

#ifdef __cplusplus
static_assert(sizeof(attn_cuda_codes_params) <= 4096, "kernel parameters");
#else
_Static_assert(sizeof(attn_cuda_codes_params) <= 4096, "kernel parameters");
#endif

#endif
