/*
 * backward_sm90_f32.cu: dQ, dK and dV for f32 inputs on sm_90a, d up to 64, by products of bf16
 * parts: five products, and sums of dQ in turns; heads of one tile in one launch. With lengths,
 * causality and windows, without score steps. Blocks with a result that is not finite are noted, as
 * in backward_sm90.cu.
 */
#include "cuda/kernel/backward/ordered_f32_sm90.cuh"
#include "cuda/kernel/backward/round_sm90.cuh"
#include "cuda/kernel/backward/single_f32_sm90.cuh"

/* ctas: of a multiprocessor, at least. */
#define KERNEL(name, threads, ctas, ...)                                                   \
    extern "C" __global__ __launch_bounds__(threads, ctas) void attn_backward_sm90_##name( \
        const __grid_constant__ attn_cuda_backward_params a)                               \
    {                                                                                      \
        __VA_ARGS__(a);                                                                    \
    }
#define ATTN_BACKWARD_SM90_PARTS(name, d, step)                           \
    KERNEL(name##_delta, 256, 4, split_rows<d>)                           \
    KERNEL(name##_ordered, 384, 1, ordered_f32_sm90<PartsShape<d, step>>) \
    KERNEL(name##_round, 256, 4, round_sm90<PartsShape<d, step>>)         \
    KERNEL(name##_single, 256, 1, single_f32_sm90)
#include "cuda/kernels.inc"
