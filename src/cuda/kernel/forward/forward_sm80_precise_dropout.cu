/*
 * forward_sm80_precise_dropout.cu: the kernels of forward_sm80.cuh of 16 bits with ATTN_PRECISE and
 * dropout.
 */
#include "cuda/kernel/forward/forward_sm80.cuh"

#define ATTN_FORWARD_SM80_PRECISE_DROPOUT(name, ...) \
    ATTN_MMA_FORWARD(precise_dropout_##name, true, true, __VA_ARGS__)
#include "cuda/kernels.inc"
