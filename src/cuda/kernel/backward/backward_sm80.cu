/*
 * backward_sm80.cu: the kernels of backward_sm80.cuh without score steps.
 */
#include "cuda/kernel/backward/backward_sm80.cuh"

#define ATTN_BACKWARD_SM80(name, ...)                      \
    ATTN_MMA_KERNEL(name##_keys, true, false, __VA_ARGS__) \
    ATTN_MMA_KERNEL(name##_rows, false, false, __VA_ARGS__)
#include "cuda/kernels.inc"
