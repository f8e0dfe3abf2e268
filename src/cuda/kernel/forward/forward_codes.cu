/*
 * forward_codes.cu: the kernels of forward_generic.cuh for quantised K and V. A value is that of
 * decision 011, scale code + shift in f32, and sums are f32's; Q has a type of 32 or 16 bits.
 */
#include "cuda/forward/codes.h"
#include "cuda/kernel/forward/forward_generic.cuh"

#define ATTN_FORWARD_CODES(name, storage)                                                       \
    extern "C" __global__ __launch_bounds__(THREADS) void attn_forward_##name(                  \
        const __grid_constant__ attn_cuda_codes_params a)                                       \
    {                                                                                           \
        const CodedKeys keys = {a.forward.problem, a.k_scale, a.k_shift, a.v_scale, a.v_shift}; \
        forward_generic<storage, float>(a.forward, keys);                                       \
    }
#include "cuda/kernels.inc"
