/*
 * backward_sm90.cu: dQ, dK and dV for 16-bit inputs on sm_90a by wgmma and the TMA: one kernel owns
 * keys (keys_sm90.cuh), another owns rows (rows_sm90.cuh), and each computes S and dP: no sum is
 * shared, so the order of every sum is fixed. For sequences as long as the tensors, with causality
 * and windows, without score steps. Blocks of 64 with a result that is not finite are noted, and
 * backward_generic.cu does them again: products with masked positions may have spoilt them.
 */
#include "cuda/kernel/backward/delta_sm90.cuh"
#include "cuda/kernel/backward/keys_sm90.cuh"
#include "cuda/kernel/backward/rows_sm90.cuh"

#define KERNEL(name, threads, ...)                                                      \
    extern "C" __global__ __launch_bounds__(threads, 1) void attn_backward_sm90_##name( \
        const __grid_constant__ attn_cuda_backward_params a)                            \
    {                                                                                   \
        __VA_ARGS__(a);                                                                 \
    }
#define ATTN_BACKWARD_SM90_DELTA(name, dtype, d) KERNEL(name, 256, delta_sm90<dtype, d>)
#define ATTN_BACKWARD_SM90_KEYS(name, dtype, d, step, stages, part, dk, dv) \
    KERNEL(name, 384, keys_sm90<GradShape<dtype, d, step, stages, dk, dv>>)
#define ATTN_BACKWARD_SM90_ROWS(name, dtype, d, step, stages) \
    KERNEL(name, 384, rows_sm90<GradShape<dtype, d, step, stages>>)
#include "cuda/kernels.inc"
