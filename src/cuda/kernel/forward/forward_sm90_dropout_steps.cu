/*
 * forward_sm90_dropout_steps.cu: forward_sm90_dropout.cu with any score steps.
 */
#include "cuda/kernel/forward/forward_sm90.cuh"

#define ATTN_FORWARD_SM90_DROPOUT_STEPS(name, dtype, d, groups, bn, registers, turns)             \
    extern "C" __global__ __launch_bounds__(128 * (groups + 1), 1) void attn_forward_sm90_##name( \
        const __grid_constant__ attn_cuda_forward_params a)                                       \
    {                                                                                             \
        forward<DroppedShape<dtype, d, groups, bn, registers, turns, ATTN_CUDA_STEPPED>>(a);      \
    }
#include "cuda/kernels.inc"
