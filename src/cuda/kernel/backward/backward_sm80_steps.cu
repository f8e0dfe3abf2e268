/*
 * backward_sm80_steps.cu: the kernels of backward_sm80.cuh with score steps and dropout.
 */
#include "cuda/kernel/backward/backward_sm80.cuh"

#define ATTN_BACKWARD_SM80_STEPS(name, ...)                       \
    ATTN_MMA_KERNEL(steps_##name##_keys, true, true, __VA_ARGS__) \
    ATTN_MMA_KERNEL(steps_##name##_rows, false, true, __VA_ARGS__)
#include "cuda/kernels.inc"
