/*
 * few_run.cuh: an item of forward_few from its first tile to the sums of its warps. Each warp has
 * 16 keys of each tile, which it fetches for itself:
 *
 *     copies of tile n + STAGES - 1 under way | places of tile n + STAGES | tile n: S, softmax, P V
 *
 * Warps meet at the end (few_end.cuh).
 */
#pragma once
#include "cuda/kernel/forward/few_end.cuh"
#include "cuda/kernel/forward/few_load.cuh"
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
            if constexpr (S::SHARED) {
                tile.rows.share_q(loader.c, loader.item);
            } else {
                tile.rows.load_q(loader.c, loader.item);
            }
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

/* Leaves the sums of all warps in shared memory. There are tiles. */
template <class S>
__device__ __forceinline__ void run_item(const attn_cuda_codes_params &c, const FewItem &item,
                                         unsigned char *shared)
{
    FewRows<S> rows;
    rows.q_at = ptx::shared_address(shared) + S::Q_AT + threadIdx.x % 32 * 16;
    const FewTile<S> tile(c, item, rows);
    run_tiles<S>(FewLoader<S>(c, item, shared + threadIdx.x / 32 * S::WARP), tile);
    ptx::copy_async_wait<0>();
    __syncthreads();
    rows.leave(shared, S::SHARED ? S::ROWS : item.rows);
    __syncthreads();
}

/* Finds an item and the places of its KV head's rows, by the CTA's first warps. */
template <class S>
__device__ __forceinline__ void find_item(const attn_cuda_codes_params &c, uint32_t index,
                                          FewItem &item)
{
    if (threadIdx.x == 0) {
        few_item<S>(c.forward, index, item);
    } else if (threadIdx.x % 32 == 0 && threadIdx.x / 32 <= TENSORS - S::FIRST_TENSOR) {
        const int which = S::FIRST_TENSOR + (int)threadIdx.x / 32 - 1;
        item.places[which] = few_place(c, which, few_kv_head(c.forward.few, index));
    }
}
