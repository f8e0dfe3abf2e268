/*
 * forward_few.cu: the forward pass of few rows on the tensor cores of any GPU from sm_80 on: K and
 * V of 16 bits, or quantised with Q of bf16 and a scale for each key at most, in rows of whole
 * pieces of 16 bytes. Made for decoding: keys are read at the speed of memory, and may lie in pages
 * of any size.
 *
 * A CTA does one item: a split of the keys of up to 16 rows, the heads of a group folded in. Each
 * of its warps has 16 keys of each tile, which it fetches for itself:
 *
 *     copies of tile n + STAGES - 1 under way | places of tile n + STAGES | tile n: S, softmax, P V
 *
 * Warps meet at the end (few_end.cuh). Sequences whose tables agree over a split are one item's rows
 * (few_shared.cuh).
 */
#include "cuda/kernel/forward/few_end.cuh"
#include "cuda/kernel/forward/few_load.cuh"
#include "cuda/kernel/forward/few_shared.cuh"
#include "cuda/kernel/forward/few_tile.cuh"

/* Adds the warp's keys of all tiles of the item to its rows. */
template <class S>
__device__ __forceinline__ void run_tiles(const FewLoader<S> &loader, const FewTile<S> &tile)
{
    typename FewLoader<S>::Row row = loader.look(1);
    typename FewLoader<S>::Factors factors = loader.find(0, loader.look(0));
    tile.rows.clear();
    const attn_problem &p = loader.c.forward.problem;
    if (S::Codes::PLAIN && (p.d < S::D || p.dv < S::D)) {
        loader.clear();
    }
#pragma unroll 1
    for (int n = 1 - S::STAGES; n < loader.item.blocks.count; n++) { /* those before 0 are none */
        const int next = n + S::STAGES - 1;
        ptx::copy_async_wait<S::STAGES - 2>();
        __syncwarp();
        loader.copy(next);
        if (next == 0) { /* behind the first keys, which take longer */
            tile.rows.load_q(loader.c, loader.item);
        }
        const typename FewLoader<S>::Factors following = loader.find(next + 1, row);
        row = loader.look(next + 2);
        loader.put(next, factors);
        factors = following;
        if (n >= 0) {
            tile.add(loader.stage(n), loader.item.blocks.last - n);
        }
    }
}

/* Does an item. */
template <class S>
__device__ __forceinline__ void run_item(const attn_cuda_codes_params &c, const FewItem &item,
                                         unsigned char *shared)
{
    if (item.blocks.count > 0) {
        unsigned char *own = shared + threadIdx.x / 32 * S::WARP;
        FewRows<S> rows;
        rows.q_at = ptx::shared_address(own) + S::Q_AT + threadIdx.x % 32 * 16;
        const FewTile<S> tile(c, item, rows);
        run_tiles<S>(FewLoader<S>(c, item, own), tile);
        ptx::copy_async_wait<0>();
        __syncthreads();
        rows.leave(shared);
        __syncthreads();
    }
    finish_few<S>(c, item, shared);
}

template <class S> __device__ __forceinline__ void few(const attn_cuda_codes_params &c)
{
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ FewItem item; /* in shared memory, since registers are few */
    constexpr bool SHARES = S::ROWS == 8;
    ptx::begin_next_launch();
    if (threadIdx.x == 0) {
        few_item<S>(c.forward, blockIdx.x, item);
    } else if (threadIdx.x % 32 == 0 && threadIdx.x / 32 <= TENSORS - S::FIRST_TENSOR) {
        const int which = S::FIRST_TENSOR + (int)threadIdx.x / 32 - 1;
        item.places[which] = few_place(c, which, few_kv_head(c.forward.few, blockIdx.x));
    } else if (SHARES && c.forward.few.slots > 1 && threadIdx.x / 32 == S::WARPS - 1) {
        find_family<S>(c.forward, blockIdx.x, item.family);
    }
    __syncthreads();
    if constexpr (SHARES) {
        if (c.forward.few.slots > 1 && !item.family.alone()) {
            if (!item.family.follows()) {
                run_item<typename S::Shared>(c, item, shared);
            }
            return;
        }
    }
    run_item<S>(c, item, shared);
}

#define ATTN_FORWARD_FEW(name, dtype, code, d, rows, warps, stages, ctas)                   \
    extern "C" __global__ __launch_bounds__(32 * warps, ctas) void attn_forward_few_##name( \
        const __grid_constant__ attn_cuda_codes_params c)                                   \
    {                                                                                       \
        few<FewShape<dtype, code, d, rows, warps, stages>>(c);                              \
    }
#define ATTN_FORWARD_FEW_MERGE(name, dtype, d)                                 \
    extern "C" __global__ __launch_bounds__(128) void attn_forward_few_##name( \
        const __grid_constant__ attn_cuda_codes_params c)                      \
    {                                                                          \
        merge_few<dtype, d>(c);                                                \
    }
#include "cuda/kernels.inc"
