/*
 * forward_sm90_dropout.cu: forward_sm90 with dropout (dropped.cuh) and no score steps: 16 bits. In
 * f16 what rows keep of P is added up, since P has few digits where dropout takes the heavy keys
 * away.
 */
#include "cuda/kernel/forward/forward_sm90.cuh"

#define ATTN_FORWARD_SM90_DROPOUT(name, dtype, d, groups, bn, registers, turns)                   \
    extern "C" __global__ __launch_bounds__(128 * (groups + 1), 1) void attn_forward_sm90_##name( \
        const __grid_constant__ attn_cuda_forward_params a)                                       \
    {                                                                                             \
        forward<DroppedShape<dtype, d, groups, bn, registers, turns, ATTN_CUDA_SCALED>>(a);       \
    }
#include "cuda/kernels.inc"
