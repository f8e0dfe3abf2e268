/*
 * backward_sm90_dropout.cu: the kernels of backward_sm90.cu for problems with dropout alone, whose
 * sequences have no origins (drops_sm90.cuh). A tile is that of the plain kernel; beside dQ and dK
 * a lane finds what is dropped of the next one, by counters that the loader has begun.
 */
#include "cuda/kernel/backward/ordered_sm90.cuh"
#include "cuda/kernel/backward/round_sm90.cuh"

#define KERNEL(name, threads, ctas, ...)                                                           \
    extern "C" __global__ __launch_bounds__(threads, ctas) void attn_backward_sm90_dropout_##name( \
        const __grid_constant__ attn_cuda_backward_params a)                                       \
    {                                                                                              \
        __VA_ARGS__(a);                                                                            \
    }
#define ATTN_BACKWARD_SM90_DROPOUT(name, dtype, d, step, stages, stays)           \
    KERNEL(name##_ordered, 384, 1,                                                \
           ordered_sm90<OrderShape<dtype, d, step, stages, GRAD_DROPPED, stays>>) \
    KERNEL(name##_round, 256, 4, round_sm90<OrderShape<dtype, d, step, stages, GRAD_DROPPED>>)
#include "cuda/kernels.inc"
