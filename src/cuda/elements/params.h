/* params.h: arguments of the kernels of single elements, by value. C and CUDA. */
#ifndef ATTN_CUDA_ELEMENTS_PARAMS_H
#define ATTN_CUDA_ELEMENTS_PARAMS_H

#include "core/codes.h"
#include "core/dropout_args.h"
#include "core/problem.h"

typedef struct attn_cuda_elements_params {
    attn_quantized t;          /* of scales, codes and values */
    attn_dropout_problem drop; /* of a mask of dropout */
    int64_t count;             /* what CTAs share: groups, bytes of codes, elements */
    bool wide;                 /* of scales: a CTA for each group, else a warp */
} attn_cuda_elements_params;

#ifdef __cplusplus
static_assert(sizeof(attn_cuda_elements_params) <= 4096, "kernel parameters");
#else
_Static_assert(sizeof(attn_cuda_elements_params) <= 4096, "kernel parameters");
#endif

#endif
