/*
 * forward_few_shared.cu: forward_few for keys of 16 bits in pages that several sequences have, as
 * forks of a prompt do (few_shared.cuh). The bits are those of forward_few. A launch ahead compares
 * the tables.
 */
#include "cuda/kernel/forward/few_run.cuh"
#include "cuda/kernel/forward/few_shared.cuh"

/* S: the shape for rows of one sequence, SHARED: of several. There are splits. */
template <class S, class SHARED>
__device__ __forceinline__ void few_shared(const attn_cuda_codes_params &c)
{
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ FewItem item;
    const uint32_t index = shared_index(c.sharing, blockIdx.x), splits = c.forward.few.ctas.by,
                   sequence = quotient(index, c.sharing.items),
                   first = quotient(sequence, c.sharing.slots) * c.sharing.slots.by,
                   split = index - quotient(index, c.forward.few.ctas) * splits;
    ptx::begin_next_launch();
    ptx::wait_for_last_launch();
    const uint32_t slots = c.sharing.families[sequence * splits + split], own = sequence - first;
    if ((slots & (1u << own) - 1) != 0) { /* an earlier one has the rows of all */
        return;
    }
    if (threadIdx.x == 0) {
        item.family = {slots, (int)first, (int)own};
    }
    find_item<S, false>(c, index, item);
    if ((slots & slots - 1) != 0) {
        run_item<SHARED>(c, item, shared);
        store_splits<SHARED>(c, item, shared);
        return;
    }
    if (item.blocks.count > 0) {
        run_item<S>(c, item, shared);
    }
    store_splits<S>(c, item, shared);
}

/* Finds the families of all splits, a warp each. */
__device__ __forceinline__ void find_families(const attn_cuda_codes_params &c)
{
    const uint32_t index = blockIdx.x * 4 + threadIdx.x / 32, splits = c.forward.few.ctas.by,
                   sequence = quotient(index, c.forward.few.ctas);
    ptx::begin_next_launch();
    if (sequence < (uint32_t)c.sharing.batch) {
        const uint32_t slots = find_family<FewShape<ATTN_BF16, ATTN_BF16, 64, 8, 4, 4>>(
            c, (int)sequence, (int)(index - sequence * splits));
        if (threadIdx.x % 32 == 0) {
            c.sharing.families[index] = slots;
        }
    }
}

#define ATTN_FORWARD_FEW_FIND(name)                                                   \
    extern "C" __global__ __launch_bounds__(128) void attn_forward_few_shared_##name( \
        const __grid_constant__ attn_cuda_codes_params c)                             \
    {                                                                                 \
        find_families(c);                                                             \
    }
#define ATTN_FORWARD_FEW_SHARED(name, dtype, d, warps, stages, ctas)                               \
    extern "C" __global__ __launch_bounds__(32 * warps, ctas) void attn_forward_few_shared_##name( \
        const __grid_constant__ attn_cuda_codes_params c)                                          \
    {                                                                                              \
        few_shared<FewShape<dtype, dtype, d, 8, warps, stages>,                                    \
                   FewShape<dtype, dtype, d, ATTN_FEW_SHARED_ROWS, warps, stages,                  \
                            ATTN_CUDA_THREADS, true>>(c);                                          \
    }
#include "cuda/kernels.inc"
