/*
 * forward_sm90_paged.cu: forward_sm90 where keys lie in pages (paged_sm90.cuh).
 */
#include "cuda/kernel/forward/forward_sm90.cuh"
#include "cuda/kernel/forward/paged_sm90.cuh"

#define ATTN_FORWARD_SM90_PAGED(name, dtype, d, dv, groups, bn, registers, turns)                  \
    extern "C" __global__ __launch_bounds__(128 * (groups + 1), 1) void attn_forward_sm90_##name(  \
        const __grid_constant__ attn_cuda_forward_params a)                                        \
    {                                                                                              \
        forward<                                                                                   \
            Shape<dtype, d, groups, bn, registers, turns, ATTN_CUDA_PAGED, ATTN_CUDA_SCALED, dv>>( \
            a);                                                                                    \
    }
#include "cuda/kernels.inc"
