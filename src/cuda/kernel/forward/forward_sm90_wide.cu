/*
 * forward_sm90_wide.cu: forward_sm90 for head dimensions beyond 256: two consumer warpgroups share
 * 64 rows of Q, and each has half of the columns of V and O (WideShape in shape_sm90.cuh,
 * wide_sm90.cuh). Where V is the first columns of K, as in multi-head latent attention, its tiles
 * are those of K, and keys may lie in pages (swap_sm90.cuh).
 */
#include "cuda/kernel/forward/forward_sm90.cuh"
#include "cuda/kernel/forward/paged_sm90.cuh"
#include "cuda/kernel/forward/strips_sm90.cuh"

#define ATTN_FORWARD_SM90_WIDE(name, dtype, d, registers, loads)                   \
    extern "C" __global__ __launch_bounds__(384, 1) void attn_forward_sm90_##name( \
        const __grid_constant__ attn_cuda_forward_params a)                        \
    {                                                                              \
        forward<WideShape<dtype, d, registers, loads>>(a);                         \
    }
#define ATTN_FORWARD_WIDE_MERGE(name, dtype, d, dv)                                \
    extern "C" __global__ __launch_bounds__(128, 4) void attn_forward_sm90_##name( \
        const __grid_constant__ attn_cuda_forward_params a)                        \
    {                                                                              \
        merge_strips<dtype, d, dv>(a);                                             \
    }
#include "cuda/kernels.inc"
