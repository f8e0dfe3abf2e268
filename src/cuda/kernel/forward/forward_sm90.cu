/*
 * forward_sm90.cu: the forward pass for 16-bit inputs and f32 on sm_90a: FlashAttention-2's
 * algorithm in the shape of FlashAttention-3 (arXiv 2407.08608): a producer warpgroup feeds tiles
 * through shared memory to consumer warpgroups of 64 rows each, whose softmax runs while the tensor
 * cores do other warpgroups' work and (d = 128) the end of P V.
 *
 *     producer:  for each item:  K(0) Q [K(i) V(i-1)].. V(n-1)
 *     consumer:  S = Q K(0)^T | softmax of S
 *                for i = 1 .. n-1:  issue S = Q K(i)^T | issue O += P V(i-1)
 *                                   softmax of S | O *= alpha, if not 1
 *                O += P V(n-1) | end of the rows
 *
 * Block 0 is the rightmost one: masked blocks come first.
 *
 * A CTA stays and takes one item per round (produce_sm90.cuh). Consumers of f32 load Q themselves,
 * and f32 problems of one block of keys need no pipeline (single_sm90.cuh). Lengths, causality and
 * windows are intervals of keys (core/mask.h). Not here: scores with bias, mask tensor, ALiBi,
 * softcap (forward_sm90_steps.cu).
 */
#include "cuda/kernel/forward/forward_sm90.cuh"
#include "cuda/kernel/forward/single_sm90.cuh"

#define ATTN_FORWARD_SM90(name, dtype, d, dv, groups, bn, registers, turns, loads)                \
    extern "C" __global__ __launch_bounds__(128 * (groups + 1), 1) void attn_forward_sm90_##name( \
        const __grid_constant__ attn_cuda_forward_params a)                                       \
    {                                                                                             \
        forward<Shape<dtype, d, groups, bn, registers, turns, loads, ATTN_CUDA_SCALED, dv>>(a);   \
    }
#define ATTN_FORWARD_SINGLE(name, dtype, d, bn, ctas)                                 \
    extern "C" __global__ __launch_bounds__(256, ctas) void attn_forward_sm90_##name( \
        const __grid_constant__ attn_cuda_forward_params a)                           \
    {                                                                                 \
        single<Shape<dtype, d, 1, bn, 0, false, ATTN_CUDA_THREADS>>(a);               \
    }
#define ATTN_FORWARD_MERGE(name, dtype, d, dv)                                     \
    extern "C" __global__ __launch_bounds__(128, 4) void attn_forward_sm90_##name( \
        const __grid_constant__ attn_cuda_forward_params a)                        \
    {                                                                              \
        merge<dtype, d, dv>(a);                                                    \
    }
#include "cuda/kernels.inc"
