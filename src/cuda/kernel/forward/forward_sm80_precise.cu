/*
 * forward_sm80_precise.cu: the kernels of forward_sm80.cuh of 16 bits with ATTN_PRECISE.
 */
#include "cuda/kernel/forward/forward_sm80.cuh"

#define ATTN_FORWARD_SM80_PRECISE(name, ...) \
    ATTN_MMA_FORWARD(precise_##name, false, true, __VA_ARGS__)
#include "cuda/kernels.inc"
