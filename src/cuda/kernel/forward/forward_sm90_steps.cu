/*
 * forward_sm90_steps.cu: forward_sm90 for scores that are more than a positive scale makes of
 * products: softcap, bias, ALiBi, mask tensor, scale <= 0 (steps_sm90.cuh). Kernels of their own,
 * since a question asked in each block takes registers that the plain ones need.
 */
#include "cuda/kernel/forward/forward_sm90.cuh"
#include "cuda/kernel/forward/paged_sm90.cuh"

#define ATTN_FORWARD_SM90_STEPS(name, dtype, d, groups, bn, registers, turns, loads)              \
    extern "C" __global__ __launch_bounds__(128 * (groups + 1), 1) void attn_forward_sm90_##name( \
        const __grid_constant__ attn_cuda_forward_params a)                                       \
    {                                                                                             \
        forward<Shape<dtype, d, groups, bn, registers, turns, loads, ATTN_CUDA_STEPPED>>(a);      \
    }
#include "cuda/kernels.inc"
