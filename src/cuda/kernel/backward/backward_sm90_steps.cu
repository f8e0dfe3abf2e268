/*
 * backward_sm90_steps.cu: the kernels of backward_sm90.cu with five products, for problems with
 * score steps or dropout (steps_sm90.cuh), and gradients of a bias and of slopes (sums_sm90.cuh).
 */
#include "cuda/kernel/backward/ordered_sm90.cuh"
#include "cuda/kernel/backward/round_sm90.cuh"
#include "cuda/kernel/backward/sums_sm90.cuh"
#include "cuda/kernel/backward/wide_sm90.cuh"

#define KERNEL_OF(name, bounds, ...)                                   \
    extern "C" __global__ bounds void attn_backward_sm90_steps_##name( \
        const __grid_constant__ attn_cuda_backward_params a)           \
    {                                                                  \
        __VA_ARGS__(a);                                                \
    }
#define KERNEL(name, threads, ctas, ...) \
    KERNEL_OF(name, __launch_bounds__(threads, ctas), __VA_ARGS__)
#define ATTN_BACKWARD_SM90_STEPS(name, dtype, d, step, stages, stays)             \
    KERNEL(name##_ordered, 384, 1,                                                \
           ordered_sm90<OrderShape<dtype, d, step, stages, GRAD_STEPPED, stays>>) \
    KERNEL(name##_round, 256, 4, round_sm90<OrderShape<dtype, d, step, stages>>)  \
    KERNEL(name##_sums, 384, 1, sums_sm90<SumShape<dtype, d, step>>)
#define ATTN_BACKWARD_SM90_WIDE_STEPS(name, dtype, d, step, stages)             \
    KERNEL_OF(name##_ordered, __cluster_dims__(2) __launch_bounds__(384, 1),    \
              wide_sm90<WideShape<dtype, d, step, stages, GRAD_STEPPED>>)       \
    KERNEL(name##_round, 256, 2, round_sm90<WideShape<dtype, d, step, stages>>) \
    KERNEL(name##_sums, 384, 1, sums_sm90<SumShape<dtype, d, step>>)
#include "cuda/kernels.inc"
