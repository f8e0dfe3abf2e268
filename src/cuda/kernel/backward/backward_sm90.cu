/*
 * backward_sm90.cu: dQ, dK and dV for 16-bit inputs on sm_90a by wgmma and the TMA: one kernel owns
 * keys (keys_sm90.cuh), another owns rows (rows_sm90.cuh), and each computes S and dP: no sum is
 * shared, so the order of every sum is fixed. For sequences as long as the tensors, with causality
 * and windows, without score steps. Blocks of 64 with a result that is not finite are noted, and
 * backward_generic.cu does them again: products with masked positions may have spoilt them.
 */
#include "cuda/kernel/backward/keys_sm90.cuh"
#include "cuda/kernel/backward/rows_sm90.cuh"

#define KERNEL(name, part, function, ...)                                                 \
    extern "C" __global__ __launch_bounds__(384, 1) void attn_backward_sm90_##name##part( \
        const __grid_constant__ attn_cuda_backward_params a)                              \
    {                                                                                     \
        function<GradShape<__VA_ARGS__>>(a);                                              \
    }
#define ATTN_BACKWARD_SM90(name, dtype, d, key_stages, row_step, row_stages) \
    KERNEL(name, _keys, keys_sm90, dtype, d, 64, key_stages)                 \
    KERNEL(name, _rows, rows_sm90, dtype, d, row_step, row_stages)
#include "cuda/kernels.inc"
