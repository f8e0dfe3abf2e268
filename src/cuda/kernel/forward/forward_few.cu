/*
 * forward_few.cu: the forward pass of few rows on the tensor cores of any GPU from sm_80 on: K and
 * V of 16 bits, or quantised with Q of bf16 and a scale for each key at most, in rows of whole
 * pieces of 16 bytes. Made for decoding: keys are read at the speed of memory, and may lie in pages
 * of any size.
 *
 * A CTA does one item: a split of the keys of up to 16 rows, the heads of a group folded in; or
 * several splits of up to 8 rows, one after the other, where keys have 8 or 16 bits; or all splits
 * of several KV heads.
 */
#include "cuda/kernel/forward/few_merge.cuh"
#include "cuda/kernel/forward/few_run.cuh"

/* CTAs that a multiprocessor is to hold. Registers of two are too few for codes and 16 rows where
 * no instruction makes f16 of codes. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
#define FEW_CTAS(rows, warps, ctas) ((rows) == 16 && (warps) == 8 ? 1 : (ctas))
#else
#define FEW_CTAS(rows, warps, ctas) (ctas)
#endif

#define ATTN_FORWARD_FEW(name, dtype, code, d, rows, warps, stages, ctas)                 \
    extern "C" __global__ __launch_bounds__(32 * warps, FEW_CTAS(rows, warps, ctas)) void \
        attn_forward_few_##name(const __grid_constant__ attn_cuda_codes_params c)         \
    {                                                                                     \
        few<FewShape<dtype, code, d, rows, warps, stages>>(c);                            \
    }
#define ATTN_FORWARD_FEW_ON(name, dtype, d, warps, stages, ctas)                            \
    extern "C" __global__ __launch_bounds__(32 * warps, ctas) void attn_forward_few_##name( \
        const __grid_constant__ attn_cuda_codes_params c)                                   \
    {                                                                                       \
        few<FewShape<dtype, dtype, d, 8, warps, stages, ATTN_CUDA_WHOLE, false, true>>(c);  \
    }
#define ATTN_FORWARD_FEW_MERGE(name, dtype, d)                                 \
    extern "C" __global__ __launch_bounds__(128) void attn_forward_few_##name( \
        const __grid_constant__ attn_cuda_codes_params c)                      \
    {                                                                          \
        merge_few<dtype, d>(c);                                                \
    }
#include "cuda/kernels.inc"
