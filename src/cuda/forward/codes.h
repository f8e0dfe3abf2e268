/* codes.h: arguments of the forward pass's kernels for quantised K and V, by value. C and CUDA. */
#ifndef ATTN_CUDA_CODES_H
#define ATTN_CUDA_CODES_H

#include "cuda/params.h"

/* What forward_few_shared takes besides: rows of several sequences in one tile. */
typedef struct attn_cuda_sharing {
    attn_cuda_divisor slots;  /* sequences of a tile at most */
    attn_cuda_divisor groups; /* whole groups of so many sequences */
    attn_cuda_divisor rows;   /* of a sequence's KV head */
    attn_cuda_divisor items;  /* of a sequence */
    uint32_t *families;       /* of each split of each sequence, bits of slots (few_shared.cuh) */
    attn_cuda_divisor page;   /* keys of a page */
    const char *table;        /* pages of sequences, of 64 bits or 32 */
    int64_t sequence, entry;  /* steps in bytes */
    int32_t batch;
    bool wide;
} attn_cuda_sharing;

/* Scales and shifts stand beside the arguments that all kernels have: those of an attn_problem are
 * addresses of the host's. */
typedef struct attn_cuda_codes_params {
    attn_cuda_forward_params forward;
    attn_tensor k_scale, k_shift, v_scale, v_shift; /* data == NULL: absent */
    attn_cuda_sharing sharing;                      /* for forward_few_shared */
} attn_cuda_codes_params;

#ifdef __cplusplus
static_assert(sizeof(attn_cuda_codes_params) <= 4096, "kernel parameters");
#else
_Static_assert(sizeof(attn_cuda_codes_params) <= 4096, "kernel parameters");
#endif

#endif
