/*
 * backward_sm90_mask.cu: the kernels of backward_sm90.cu for problems of bf16 with a mask alone,
 * whose rows differ and are copied by the TMA. A tile's bits are read while sums of the tile before
 * it end (lone_sm90.cuh).
 */
#include "cuda/kernel/backward/ordered_sm90.cuh"
#include "cuda/kernel/backward/round_sm90.cuh"

#define KERNEL(name, threads, ctas, ...)                                                        \
    extern "C" __global__ __launch_bounds__(threads, ctas) void attn_backward_sm90_mask_##name( \
        const __grid_constant__ attn_cuda_backward_params a)                                    \
    {                                                                                           \
        __VA_ARGS__(a);                                                                         \
    }
#define ATTN_BACKWARD_SM90_MASK(name, dtype, d, step, stages, stays)             \
    KERNEL(name##_ordered, 384, 1,                                               \
           ordered_sm90<OrderShape<dtype, d, step, stages, GRAD_MASKED, stays>>) \
    KERNEL(name##_round, 256, 4, round_sm90<OrderShape<dtype, d, step, stages>>)
#include "cuda/kernels.inc"
