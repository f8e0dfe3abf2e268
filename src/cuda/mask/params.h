/* params.h: arguments of the kernel of masks, by value. C and CUDA. */
#ifndef ATTN_CUDA_MASK_PARAMS_H
#define ATTN_CUDA_MASK_PARAMS_H

#include "core/problem.h"

enum { ATTN_CUDA_MASK_PIECE = 16 }; /* keys of a thread; rows of bytes begin at multiples of it */

typedef struct attn_cuda_mask_params {
    attn_tensor from, to;
    int64_t rows, pieces; /* of all batches and heads; of a row */
} attn_cuda_mask_params;

#endif
