/* params.h: arguments of the kernel of masks, by value. C and CUDA. */
#ifndef ATTN_CUDA_MASK_PARAMS_H
#define ATTN_CUDA_MASK_PARAMS_H

#include "core/problem.h"

enum { ATTN_CUDA_MASK_PIECE = 16 }; /* keys of a thread; rows of bytes begin at multiples of it */
enum { ATTN_CUDA_LANES_KEYS = 128, ATTN_CUDA_LANES_ROWS = 16, ATTN_CUDA_LANES_BYTES = 256 };

typedef struct attn_cuda_mask_params {
    attn_tensor from, to; /* lanes: bytes as attn_cuda_lanes steps, row as many as of a tensor */
    int64_t rows, pieces; /* of all batches and heads; of a row. Lanes: those of 16 rows */
} attn_cuda_mask_params;

#endif
