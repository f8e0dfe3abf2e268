/*
 * forward_sm90_bias.cu: forward_sm90 where a bias of the inputs' type is the only score step
 * (biased_sm90.cuh).
 */
#include "cuda/kernel/forward/forward_sm90.cuh"
#include "cuda/kernel/forward/biased_sm90.cuh"

#define ATTN_FORWARD_SM90_BIAS(name, dtype, d, groups, bn, registers, turns)                       \
    extern "C" __global__ __launch_bounds__(128 * (groups + 1), 1) void attn_forward_sm90_##name(  \
        const __grid_constant__ attn_cuda_forward_params a)                                        \
    {                                                                                              \
        forward<                                                                                   \
            Shape<dtype, d, groups, bn, registers, turns, ATTN_CUDA_RAGGED, ATTN_CUDA_BIASED>>(a); \
    }
#include "cuda/kernels.inc"
