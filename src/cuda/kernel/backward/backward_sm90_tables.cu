/*
 * backward_sm90_tables.cu: the kernels of backward_sm90_light.cu for problems of bf16 with a mask
 * or a bias of bf16 whose rows are copied (tables_sm90.cuh); with ALiBi and dropout too.
 */
#include "cuda/kernel/backward/ordered_sm90.cuh"
#include "cuda/kernel/backward/round_sm90.cuh"

#define KERNEL(name, threads, ctas, ...)                                                          \
    extern "C" __global__ __launch_bounds__(threads, ctas) void attn_backward_sm90_tables_##name( \
        const __grid_constant__ attn_cuda_backward_params a)                                      \
    {                                                                                             \
        __VA_ARGS__(a);                                                                           \
    }
#define ATTN_BACKWARD_SM90_TABLES(name, dtype, d, step, stages, stays)                 \
    KERNEL(name##_ordered, 384, 1,                                                     \
           ordered_sm90<OrderShape<dtype, d, step, stages, GRAD_LIGHT_TABLED, stays>>) \
    KERNEL(name##_round, 256, 4, round_sm90<OrderShape<dtype, d, step, stages, GRAD_LIGHT>>)
#include "cuda/kernels.inc"
