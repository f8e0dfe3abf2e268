/*
 * backward_sm90_light.cu: the kernels of backward_sm90.cu with five products, for problems of bf16
 * with ALiBi, dropout or both, and no other score step (steps_sm90.cuh): P stays in the registers
 * of S, so they take the steps of a plain tile and a few more.
 */
#include "cuda/kernel/backward/ordered_sm90.cuh"
#include "cuda/kernel/backward/round_sm90.cuh"

#define KERNEL(name, threads, ctas, ...)                                                         \
    extern "C" __global__ __launch_bounds__(threads, ctas) void attn_backward_sm90_light_##name( \
        const __grid_constant__ attn_cuda_backward_params a)                                     \
    {                                                                                            \
        __VA_ARGS__(a);                                                                          \
    }
#define ATTN_BACKWARD_SM90_LIGHT(name, dtype, d, step, stages, stays)           \
    KERNEL(name##_ordered, ATTN_GRAD_LIGHT_THREADS(d), 1,                       \
           ordered_sm90<OrderShape<dtype, d, step, stages, GRAD_LIGHT, stays>>) \
    KERNEL(name##_round, 256, 4, round_sm90<OrderShape<dtype, d, step, stages, GRAD_LIGHT>>)
#include "cuda/kernels.inc"
