/* params.h: arguments of the kernels of attn_merge, by value. C and CUDA. */
#ifndef ATTN_CUDA_MERGE_PARAMS_H
#define ATTN_CUDA_MERGE_PARAMS_H

#include "core/problem.h"

/* Most parts of a kernel. The arguments of a launch have at most 32,764 bytes. */
enum { ATTN_CUDA_FEW_PARTS = 4, ATTN_CUDA_MOST_PARTS = 64 };

typedef struct attn_cuda_merge_part {
    attn_tensor o, lse;     /* lse.data == NULL: 0 */
    attn_tensor d_o, d_lse; /* results of the gradients; absent: not wanted */
} attn_cuda_merge_part;

/* Kernels for few parts take a shorter array. */
typedef struct attn_cuda_merge_params {
    int64_t rows; /* rows of all heads */
    int32_t parts;
    int32_t wide;       /* sums of a merge in f64 */
    attn_tensor o, lse; /* results of a merge; of gradients dO and dLSE of the merged result */
    attn_cuda_merge_part part[ATTN_CUDA_MOST_PARTS];
} attn_cuda_merge_params;

#endif
