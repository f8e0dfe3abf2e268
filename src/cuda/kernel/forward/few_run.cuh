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
#include <type_traits>

/* Prepares for an item's tiles; with FINDS loader.begin has. Without ANY it starts the copies of
 * the first ones, and brings Q, which is asked for before them, since a load waits behind all
 * copies ahead of it: set_q makes operands of it while tiles come. */
template <class S>
__device__ __forceinline__ void begin_tiles(FewLoader<S> &loader, FewRows<S> &rows,
                                            const FewStart &start)
{
    rows.clear();
    if (!S::FINDS) {
        loader.begin(start);
    }
    if constexpr (!S::ANY) {
        rows.take_pieces(loader.c, start);
        __syncwarp();
        loader.enter(start);
#pragma unroll
        for (int n = 0; n < S::STAGES - 1; n++) {
            loader.load(n);
            ptx::copy_async_commit();
        }
    }
}

/* Waits for the n-th tile, and starts the copies of one behind it. */
template <class S>
__device__ __forceinline__ void await_tile(FewLoader<S> &loader, FewRows<S> &rows, int n)
{
    const int next = n + S::STAGES - 1;
    if (S::ANY && next > 0) {
        __syncwarp();
        loader.prepare(next);
    }
    if (S::GOES_ON && next == loader.early) {
        ptx::copy_async_wait<S::STAGES - 1>();
        __syncwarp();
    } else {
        ptx::copy_async_wait<S::STAGES - 2>();
        __syncwarp();
        loader.load(next);
        ptx::copy_async_commit();
    }
    if (S::ANY && next == 0) { /* behind the first keys, which take longer */
        if constexpr (S::SHARED) {
            rows.share_q(loader.c, loader.item);
        } else {
            rows.take_pieces(loader.c, FewStart(loader.item));
            rows.set_q();
        }
    }
}

/* Adds the warp's keys of the n-th tile to its rows; of those before 0 there are none: ANY begins
 * with S::BEGIN, as registers are too few for two places that load. first: number of the item's
 * first tile. QUICK: returns false, having added none, where the tile is not quick. */
template <class S>
__device__ __forceinline__ bool run_tile(FewLoader<S> &loader, const FewTile<S> &tile, int n,
                                         int first)
{
    await_tile<S>(loader, tile.rows, n);
    const int block = loader.item.blocks.last - (n - first);
    if constexpr (S::QUICK) {
        return tile.add_quick(loader.stage(n), block);
    } else if (!S::ANY || n >= 0) {
        tile.add(loader.stage(n), block);
    }
    return true;
}

/* The same of tiles n .. end - 1. Those that are not quick stand outside of the loop of those that
 * are, whose code is short so. */
template <class S>
__device__ __forceinline__ void run_tiles(FewLoader<S> &loader, const FewTile<S> &tile, int n,
                                          int end, int first)
{
#pragma unroll 1
    while (n < end) {
        const int stop = loader.settle_due(n, end);
        bool quick = true;
#pragma unroll 1
        for (; n < stop && quick; n += quick) {
            quick = run_tile<S>(loader, tile, n, first);
        }
        if (!quick) {
            tile.add(loader.stage(n), loader.item.blocks.last - (n - first));
            n++;
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
    FewLoader<S> loader(c, item, item.blocks.count, shared + threadIdx.x / 32 * S::WARP);
    if (S::FINDS) {
        loader.begin(FewStart(item));
    }
    begin_tiles<S>(loader, rows, FewStart(item));
    if constexpr (!S::ANY) {
        rows.set_q();
    }
    run_tiles<S>(loader, tile, S::BEGIN, loader.count, 0);
    ptx::copy_async_wait<0>();
    __syncthreads();
    rows.leave(shared + ptx::thread() / 32 * S::LEFT, S::SHARED ? S::ROWS : item.rows);
    __syncthreads();
}

/* Finds an item and the places of its KV head's rows, by the CTA's first warps, for all of them.
 * EVEN: as few_item. */
template <class S, bool EVEN>
__device__ __forceinline__ void find_item(const attn_cuda_codes_params &c, uint32_t index,
                                          FewItem &item)
{
    if (threadIdx.x == 0) {
        few_item<S, EVEN>(c.forward, index, item);
    } else if (S::FINDS && threadIdx.x % 32 == 0 && threadIdx.x / 32 <= TENSORS - S::FIRST_TENSOR) {
        const int which = S::FIRST_TENSOR + (int)threadIdx.x / 32 - 1;
        item.places[which] = few_place(c, which, few_kv_head(c.forward.few, index));
    }
    __syncthreads();
}

/* What a CTA makes of the splits of its rows. take: each from the right to the left, row r = the
 * warp's i-th; finish: behind all of them. Here it adds them up. */
template <class S> struct AddedSplits {
    static constexpr int EACH = S::ROWS / S::WARPS; /* rows of a warp at the ends */
    const attn_cuda_codes_params &c;
    const FewItem &item;
    const bool all, several; /* splits that the CTA has */
    GatheredRow<S::D> sums[EACH], group[EACH];

    __device__ __forceinline__ AddedSplits(const attn_cuda_codes_params &c_, const FewItem &item_)
        : c(c_), item(item_), all(c_.forward.few.ctas.by == 1 /* splits */),
          several(all || c_.forward.few.run > 1)
    {
        clear();
    }
    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            clear_row(sums[i]), clear_row(group[i]);
        }
    }
    __device__ __forceinline__ void take(int split, int i, int r, const unsigned char *left)
    {
        GatheredRow<S::D> row;
        gather_warps<S>(left, S::WARP, r, row);
        if (!several) {
            store_split<S>(c, item, 0, r, row);
            return;
        }
        add_split(group[i], row);
        if (split % ATTN_CUDA_FEW_GROUP == 0) {
            add_split(sums[i], group[i]);
            clear_row(group[i]);
        }
    }
    __device__ __forceinline__ void finish(const unsigned char *)
    {
        if (!several && item.blocks.count > 0) {
            return;
        }
#pragma unroll 1
        for (int r = threadIdx.x / 32; r < item.rows; r += S::WARPS) {
            if (all) {
                finish_row_of<S>(c, item, r, sums[0]);
            } else {
                store_split<S>(c, item, 0, r, sums[0]);
            }
#pragma unroll
            for (int i = 1; i < EACH; i++) {
                sums[i - 1] = sums[i];
            }
        }
    }
};

/* Here it leaves each for the merge, also those that have no keys. */
template <class S> struct LeftSplits {
    static constexpr int EACH = S::ROWS / S::WARPS;
    const attn_cuda_codes_params &c;
    const FewItem &item;

    __device__ __forceinline__ LeftSplits(const attn_cuda_codes_params &c_, const FewItem &item_)
        : c(c_), item(item_)
    {
    }
    __device__ __forceinline__ bool merged() const
    {
        return c.forward.schedule.splits > 1;
    }
    __device__ __forceinline__ void take(int split, int, int r, const unsigned char *left)
    {
        if (merged()) {
            GatheredRow<S::D> row;
            gather_warps<S>(left, S::WARP, r, row);
            store_split<S>(c, item, split, r, row);
        }
    }
    /* left: of the last tile. */
    __device__ __forceinline__ void finish(const unsigned char *left)
    {
        const int count = item.blocks.count;
        GatheredRow<S::D> row;
        if (!merged()) {
#pragma unroll 1
            for (int r = threadIdx.x / 32; r < item.rows; r += S::WARPS) {
                clear_row(row);
                if (count > 0) {
                    gather_warps<S>(left, S::WARP, r, row);
                }
                finish_row_of<S>(c, item, r, row);
            }
            return;
        }
        const int run = c.forward.few.run, each = max(item.each, 1), /* 0 without keys */
            most = min(run, c.forward.schedule.splits -
                                (int)few_column(c.forward.few, blockIdx.x).cta * run);
        clear_row(row);
#pragma unroll 1
        for (int split = (count + each - 1) / each; split < most; split++) {
#pragma unroll 1
            for (int r = threadIdx.x / 32; r < item.rows; r += S::WARPS) {
                store_split<S>(c, item, split, r, row);
            }
        }
    }
};

/* Makes an item the one that has that index. By one thread, when all have read the last one's. */
__device__ __forceinline__ void renew_item(const attn_cuda_few &few, uint32_t index, FewItem &item)
{
    const uint32_t sequence = quotient(index, few.kv_heads);
    item.kv_head = (int)(index - sequence * few.kv_heads.by);
    item.sequence.index = item.sequence.tensor = sequence;
}

/* Does an item from the right to the left, and those that the CTA goes on to. Where a split ends,
 * the warps meet in the stages of its last tile; the next tiles are on their way meanwhile. */
template <class S, class Splits>
__device__ __forceinline__ void run_splits(const attn_cuda_codes_params &c, FewItem &item,
                                           unsigned char *shared)
{
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0); /* the same in all lanes */
    /* The host knows the blocks: no thread waits for the item before its first copies, but in pages
     * of codes, whose places take long to find: it is found while entries of the table come. */
    const bool even = S::GOES_ON || (!S::ANY && c.forward.few.each > 0);
    if (!even) {
        find_item<S, false>(c, blockIdx.x, item);
    }
    const FewStart start = even ? even_start<S>(c.forward.few, blockIdx.x) : FewStart(item);
    FewRows<S> rows;
    FewLoader<S> loader(c, item, start.count, shared + warp * S::WARP);
    if (S::FINDS && start.count > 0) {
        loader.begin(start);
    }
    if (S::FINDS && even) {
        find_item<S, true>(c, blockIdx.x, item);
    }
    if (start.count > 0) {
        begin_tiles<S>(loader, rows, start);
    }
    if (!S::FINDS && even) {
        find_item<S, true>(c, blockIdx.x, item);
    }
    if (!S::ANY && start.count > 0) {
        rows.set_q();
    }
    Splits splits(c, item);
    const FewTile<S> tile(c, item, rows);
    int first = 0, end = loader.count, stop, split; /* the next end of a split, splits behind it */
    const auto begin = [&] {
        const int count = item.blocks.count;
        split = count > item.each ? (int)((uint32_t)(count - 1) / (uint32_t)item.each) : 0;
        stop = end - split * item.each;
    };
    /* n: the number of its last tile. */
    const auto end_split = [&](int n) {
        unsigned char *stage = loader.stage(n);
        __syncwarp();
        rows.leave(stage, item.rows);
        rows.clear();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < Splits::EACH; i++) {
            const int r = warp + i * S::WARPS;
            if (r < item.rows) {
                splits.take(split, i, r, stage - warp * S::WARP);
            }
        }
        split--;
        stop += item.each;
        if (n + 1 < end) {
            __syncthreads();
            loader.renew(stage);
        }
    };
    begin();
    int n = end > 0 ? S::BEGIN : 0;
#pragma unroll 1
    for (;;) {
#pragma unroll 1
        while (n < end) {
            if (S::GOES_ON) { /* splits are short: their ends are in the loop */
                run_tile<S>(loader, tile, n++, first);
            } else {
                run_tiles<S>(loader, tile, n, stop, first);
                n = stop;
            }
            if (!S::GOES_ON || n == stop) {
                end_split(n - 1);
            }
        }
        const bool more = S::GOES_ON && end < loader.count;
        const uint32_t index = loader.index; /* load_early may go on to yet another item */
        if constexpr (S::GOES_ON) {
            if (more) { /* the stage of the last tile is free when all have read Q and sums */
                rows.take_q(c, item, shared);
                __syncthreads();
                loader.load_early(end + S::STAGES - 1);
            }
        }
        splits.finish(shared + (end + S::STAGES - 1) % S::STAGES * S::STAGE);
        if constexpr (S::GOES_ON) {
            if (!more) {
                return;
            }
            __syncthreads();
            if (threadIdx.x == 0) {
                renew_item(c.forward.few, index, item);
            }
            splits.clear();
            first = end, end += item.blocks.count;
            begin();
        } else {
            return;
        }
    }
}

/* A CTA. */
template <class S> __device__ __forceinline__ void few(const attn_cuda_codes_params &c)
{
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ FewItem item; /* in shared memory, since registers are few */
    ptx::begin_next_launch();
    if constexpr (S::RUNS) {
        using Splits = std::conditional_t<S::ADDS, AddedSplits<S>, LeftSplits<S>>;
        run_splits<S, Splits>(c, item, shared);
    } else {
        find_item<S, false>(c, blockIdx.x, item);
        if (item.blocks.count > 0) {
            run_item<S>(c, item, shared);
        }
        finish_few<S>(c, item, shared);
    }
}
