/*
 * forward_generic.cu: the kernels of forward_generic.cuh for K and V of Q's type.
 */
#include "cuda/kernel/forward/forward_generic.cuh"

#define ATTN_FORWARD_GENERIC(name, storage, real)                               \
    extern "C" __global__ __launch_bounds__(THREADS) void attn_forward_##name(  \
        const __grid_constant__ attn_cuda_forward_params a)                     \
    {                                                                           \
        forward_generic<storage, real>(a, PlainKeys<storage, real>{a.problem}); \
    }
#include "cuda/kernels.inc"
