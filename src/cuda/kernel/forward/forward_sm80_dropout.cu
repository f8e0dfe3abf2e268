/*
 * forward_sm80_dropout.cu: the kernels of forward_sm80.cuh with dropout, and with any score steps.
 */
#include "cuda/kernel/forward/forward_sm80.cuh"

#define ATTN_FORWARD_SM80_DROPOUT(name, ...) \
    ATTN_MMA_FORWARD(dropout_##name, true, false, __VA_ARGS__)
#include "cuda/kernels.inc"
