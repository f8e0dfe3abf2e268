/*
 * backward_sm90_elements.cu: gradients of a bias with queries and keys on sm_90a
 * (elements_sm90.cuh).
 */
#include "cuda/kernel/backward/elements_sm90.cuh"

#define ATTN_BACKWARD_SM90_ELEMENTS(name, dtype, d)                                          \
    extern "C" __global__ __launch_bounds__(384, 1) void attn_backward_sm90_elements_##name( \
        const __grid_constant__ attn_cuda_backward_params a)                                 \
    {                                                                                        \
        elements_sm90<ElementShape<dtype, d>>(a);                                            \
    }
#include "cuda/kernels.inc"
