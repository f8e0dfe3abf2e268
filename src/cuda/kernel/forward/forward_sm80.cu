/*
 * forward_sm80.cu: the kernels of forward_sm80.cuh without dropout.
 */
#include "cuda/kernel/forward/forward_sm80.cuh"

#define ATTN_FORWARD_SM80(name, ...) ATTN_MMA_FORWARD(name, false, false, __VA_ARGS__)
#include "cuda/kernels.inc"
