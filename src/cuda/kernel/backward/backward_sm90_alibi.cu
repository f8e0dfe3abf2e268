/*
 * backward_sm90_alibi.cu: the kernels of backward_sm90.cu for problems of bf16 with ALiBi alone. It
 * is a term of the exponents (tables_sm90.cuh); slopes come by the loader (loader_sm90.cuh).
 */
#include "cuda/kernel/backward/ordered_sm90.cuh"
#include "cuda/kernel/backward/round_sm90.cuh"

#define KERNEL(name, threads, ctas, ...)                                                         \
    extern "C" __global__ __launch_bounds__(threads, ctas) void attn_backward_sm90_alibi_##name( \
        const __grid_constant__ attn_cuda_backward_params a)                                     \
    {                                                                                            \
        __VA_ARGS__(a);                                                                          \
    }
#define ATTN_BACKWARD_SM90_ALIBI(name, dtype, d, step, stages, stays)            \
    KERNEL(name##_ordered, 384, 1,                                               \
           ordered_sm90<OrderShape<dtype, d, step, stages, GRAD_SLOPED, stays>>) \
    KERNEL(name##_round, 256, 4, round_sm90<OrderShape<dtype, d, step, stages>>)
#include "cuda/kernels.inc"
