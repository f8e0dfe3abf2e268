/*
 * check_gpu_grad.h: the backward pass in `attn check --device cuda`.
 */
#ifndef CLI_CHECK_GPU_GRAD_H
#define CLI_CHECK_GPU_GRAD_H

#include "check_verdict.h"

typedef struct check_grad_outcome {
    attn_status status;
    char kernel[48], sentence[300]; /* sentence: the library's, unless status is ATTN_OK */
    struct check_verdict verdict;
    double allowed; /* the largest verdict.grad_c */
} check_grad_outcome;

/* O and LSE by the CPU's forward pass; gradients on the GPU twice, or `runs` times if that is more,
 * on two streams, into poisoned outputs between poisoned margins. */
void check_gpu_gradients(attn_context *context, void *const streams[2], int64_t runs,
                         const problem_spec *problem, check_grad_outcome *out);

#endif
