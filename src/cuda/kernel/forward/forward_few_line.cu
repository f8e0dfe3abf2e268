/*
 * forward_few_line.cu: forward_few for up to 8 straight rows (attn_cuda_few.straight) without score
 * steps, for GPUs of sm_90 alone: keys side by side, and in pages of whole tiles of a warp. Tiles
 * test for no option of other calls: they are half as much code.
 */
#include "cuda/kernel/forward/few_run.cuh"

#define ATTN_FORWARD_FEW_LINE(name, dtype, code, d, warps, stages, ctas, loads)             \
    extern "C" __global__ __launch_bounds__(32 * warps, ctas) void attn_forward_few_##name( \
        const __grid_constant__ attn_cuda_codes_params c)                                   \
    {                                                                                       \
        few<FewShape<dtype, code, d, 8, warps, stages, loads>>(c);                          \
    }
#include "cuda/kernels.inc"
