/*
 * forward_sm90_mask.cu: forward_sm90 where a mask tensor is the only score step (masked_sm90.cuh).
 */
#include "cuda/kernel/forward/forward_sm90.cuh"
#include "cuda/kernel/forward/masked_sm90.cuh"

#define ATTN_FORWARD_SM90_MASK(name, dtype, d, groups, bn, registers, turns)                       \
    extern "C" __global__ __launch_bounds__(128 * (groups + 1), 1) void attn_forward_sm90_##name(  \
        const __grid_constant__ attn_cuda_forward_params a)                                        \
    {                                                                                              \
        forward<                                                                                   \
            Shape<dtype, d, groups, bn, registers, turns, ATTN_CUDA_RAGGED, ATTN_CUDA_MASKED>>(a); \
    }
#include "cuda/kernels.inc"
