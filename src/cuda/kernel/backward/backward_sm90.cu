/*
 * backward_sm90.cu: dQ, dK and dV for 16-bit inputs on sm_90a by wgmma and the TMA: one kernel owns
 * keys, and they add to dQ in turns (ordered_sm90.cuh, beyond d = 128 wide_sm90.cuh;
 * round_sm90.cuh). The order of every sum is fixed. With lengths, causality and windows, without
 * score steps. Blocks of 64 with a result that is not finite are noted, and backward_generic.cu
 * does them again: products with masked positions may have spoilt them.
 */
#include "cuda/kernel/backward/delta_sm90.cuh"
#include "cuda/kernel/backward/ordered_sm90.cuh"
#include "cuda/kernel/backward/round_sm90.cuh"
#include "cuda/kernel/backward/wide_sm90.cuh"

/* ctas: of a multiprocessor, at least. */
#define KERNEL_OF(name, bounds, ...)                             \
    extern "C" __global__ bounds void attn_backward_sm90_##name( \
        const __grid_constant__ attn_cuda_backward_params a)     \
    {                                                            \
        __VA_ARGS__(a);                                          \
    }
#define KERNEL(name, threads, ctas, ...) \
    KERNEL_OF(name, __launch_bounds__(threads, ctas), __VA_ARGS__)
#define PAIRED_KERNEL(name, threads, ...) \
    KERNEL_OF(name, __cluster_dims__(2) __launch_bounds__(threads, 1), __VA_ARGS__)
#define ATTN_BACKWARD_SM90_DELTA(name, dtype, d) KERNEL(name, 256, 4, delta_sm90<dtype, d>)
#define ATTN_BACKWARD_SM90_AHEAD(name, dtype, d) \
    KERNEL(name, ATTN_GRAD_AHEAD_THREADS, 1, delta_ahead<d>)
#define ATTN_BACKWARD_SM90_PAIRED_AHEAD(name, dtype, d) \
    PAIRED_KERNEL(name, ATTN_GRAD_AHEAD_THREADS, delta_ahead<d>)
#define ATTN_BACKWARD_SM90_ORDERED(name, dtype, d, step, stages, stays)          \
    KERNEL(name##_ordered, 384, 1,                                               \
           ordered_sm90<OrderShape<dtype, d, step, stages, GRAD_SCALED, stays>>) \
    KERNEL(name##_round, 256, 4, round_sm90<OrderShape<dtype, d, step, stages>>)
#define ATTN_BACKWARD_SM90_ROUNDED(name, dtype, d, step, stages) \
    KERNEL(name##_rounded, 384, 1,                               \
           ordered_sm90<OrderShape<dtype, d, step, stages, GRAD_ROUNDED, true>>)
#define ATTN_BACKWARD_SM90_WIDE(name, dtype, d, step, stages)                        \
    PAIRED_KERNEL(name##_ordered, 384, wide_sm90<WideShape<dtype, d, step, stages>>) \
    KERNEL(name##_round, 256, 2, round_sm90<WideShape<dtype, d, step, stages>>)
#include "cuda/kernels.inc"
