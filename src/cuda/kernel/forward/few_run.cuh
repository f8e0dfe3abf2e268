/*
 * few_run.cuh: an item of forward_few from its first tile to the sums of its warps. Each warp has
 * 16 keys of each tile, which it fetches for itself:
 *
 *     copies of tile n + STAGES - 1 under way | tile n: S, softmax, P V | places of tile n + STAGES
 *
 * Warps meet at the end of a split (few_end.cuh).
 */
#pragma once
#include "cuda/kernel/forward/few_end.cuh"
#include "cuda/kernel/forward/few_load.cuh"
#include "cuda/kernel/forward/few_tile.cuh"

/* Adds the warp's keys of all tiles of the item to its rows. ends(n): behind the n-th tile. */
template <class S, class Ends>
__device__ __forceinline__ void run_tiles(const FewLoader<S> &loader, const FewTile<S> &tile,
                                          const Ends &ends)
{
    tile.rows.clear();
    loader.clear(loader.shared, S::PLACES_AT);
    loader.look_first();
    loader.find(0);
#pragma unroll 1
    for (int n = 1 - S::STAGES; n < loader.item.blocks.count; n++) { /* those before 0 are none */
        const int next = n + S::STAGES - 1;
        ptx::copy_async_wait<S::STAGES - 2>();
        __syncwarp();
        loader.copy(next);
        loader.look_ahead(next + S::STAGES);
        ptx::copy_async_commit();
        if (next == 0) { /* behind the first keys, which take longer */
            if constexpr (S::SHARED) {
                tile.rows.share_q(loader.c, loader.item);
            } else {
                tile.rows.load_q(loader.c, loader.item);
            }
        }
        if (n >= 0) {
            tile.add(loader.stage(n), loader.item.blocks.last - n);
        }
        __syncwarp();
        loader.find(next + 1);
        if (n >= 0) {
            ends(n);
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
    run_tiles<S>(FewLoader<S>(c, item, shared + threadIdx.x / 32 * S::WARP), tile, [](int) {});
    ptx::copy_async_wait<0>();
    __syncthreads();
    rows.leave(shared + ptx::thread() / 32 * S::LEFT, S::SHARED ? S::ROWS : item.rows);
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

/* Does an item from the right to the left. Where a split ends, the warps meet in the stages of its
 * last tile; the next tiles are on their way meanwhile. */
template <class S>
__device__ __forceinline__ void run_splits(const attn_cuda_codes_params &c, const FewItem &item,
                                           unsigned char *shared)
{
    constexpr int EACH = S::ROWS / S::WARPS; /* rows of a warp at the ends */
    const int warp = threadIdx.x / 32;
    const bool all = c.forward.few.ctas.by == 1 /* splits */,
               several = all || c.forward.few.run > 1;
    GatheredRow<S::D> sums[EACH], group[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        clear_row(sums[i]), clear_row(group[i]);
    }
    FewRows<S> rows;
    const FewTile<S> tile(c, item, rows);
    const FewLoader<S> loader(c, item, shared + warp * S::WARP);
    int left = item.blocks.count, split = 0; /* tiles to the next end; splits behind that */
    if (left > item.each) {
        split = (int)((uint32_t)(left - 1) / (uint32_t)item.each);
        left -= split * item.each;
    }
    const auto ends = [&](int n) {
        if (--left > 0) {
            return;
        }
        left = item.each;
        unsigned char *stage = loader.stage(n);
        __syncwarp();
        rows.leave(stage, item.rows);
        rows.clear();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int r = warp + i * S::WARPS;
            if (r < item.rows) {
                GatheredRow<S::D> row;
                gather_warps<S>(stage - warp * S::WARP, S::WARP, r, row);
                if (!several) {
                    store_split<S>(c, item, r, row);
                    continue;
                }
                add_split(group[i], row);
                if (split % ATTN_CUDA_FEW_GROUP == 0) {
                    add_split(sums[i], group[i]);
                    clear_row(group[i]);
                }
            }
        }
        split--;
        if (n + 1 < item.blocks.count) {
            __syncthreads();
            loader.clear(stage, S::LEFT);
        }
    };
    if (item.blocks.count > 0) {
        run_tiles<S>(loader, tile, ends);
    }
    if (!several && item.blocks.count > 0) {
        return;
    }
#pragma unroll 1
    for (int r = warp; r < item.rows; r += S::WARPS) {
        if (all) {
            finish_row_of<S>(c, item, r, sums[0]);
        } else {
            store_split<S>(c, item, r, sums[0]);
        }
#pragma unroll
        for (int i = 1; i < EACH; i++) {
            sums[i - 1] = sums[i];
        }
    }
}
