/*
 * forward_few_shared.cu: forward_few for keys of 16 bits in pages, several of whose sequences may
 * share pages, as forks of a prompt do (few_shared.cuh). The bits are those of forward_few.
 */
#include "cuda/kernel/forward/few_run.cuh"
#include "cuda/kernel/forward/few_shared.cuh"

/* S: the shape for rows of one sequence, SHARED: of several. There are splits. */
template <class S, class SHARED>
__device__ __forceinline__ void few_shared(const attn_cuda_codes_params &c)
{
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ FewItem item;
    const uint32_t index = shared_index(c.sharing, blockIdx.x);
    ptx::begin_next_launch();
    if (threadIdx.x / 32 < S::WARPS - 1) {
        find_item<S>(c, index, item);
    } else {
        find_family<S>(c, index, item.family);
    }
    __syncthreads();
    if (item.family.alone()) {
        if (item.blocks.count > 0) {
            run_item<S>(c, item, shared);
        }
        store_splits<S>(c, item, shared);
    } else if (!item.family.follows()) {
        run_item<SHARED>(c, item, shared);
        store_splits<SHARED>(c, item, shared);
    }
}

#define ATTN_FORWARD_FEW_SHARED(name, dtype, d, warps, stages, ctas)                               \
    extern "C" __global__ __launch_bounds__(32 * warps, ctas) void attn_forward_few_shared_##name( \
        const __grid_constant__ attn_cuda_codes_params c)                                          \
    {                                                                                              \
        few_shared<FewShape<dtype, dtype, d, 8, warps, stages>,                                    \
                   FewShape<dtype, dtype, d, ATTN_FEW_SHARED_ROWS, warps, stages, true>>(c);       \
    }
#include "cuda/kernels.inc"
