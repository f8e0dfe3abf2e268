/*
 * turns_sm90.cuh: the order in which blocks of keys add to dQ (ordered_sm90.cuh), by three threads
 * beside those that compute. In wide kernels (wide_sm90.cuh) warps add, not the TMA.
 *
 * Barriers of tile n, who completes them, and who waits:
 *
 *     full    the loader: Q, dO, LSE, delta are there     the warps
 *     empty   8 warps: they have read them                the loader, before tile n + STAGES
 *     done    8 warps: sums of dQ are in shared memory    hand_turns_on
 *             (wide: they are added)
 *     turn    await_turns: the block behind has added     hand_turns_on (wide: the warps)
 *     room    hand_turns_on: the sums have left           the warps, before the sums of n + 1;
 *                                                         await_turns, before turn of n + 2
 *
 * Tiles are numbered over all items of a CTA. Barriers of item k:
 *
 *     keys_full   the loader: what it is, K, V            the warps, the three threads
 *     keys_empty  8 warps: K and V have been read;        the loader, before keys_full of k + 1
 *                 the three threads: they know it
 *
 * No phase ends twice before all that wait for it have seen it. done of n + 3 takes sums of n + 3
 * in room of n + 2, which hand_turns_on gives after it took done of n. turn of n + 2 follows room
 * of n, which follows turn of n. room of n + 2 follows done and turn of n + 2: by then the warps
 * and await_turns have seen room of n. Each wait is for an earlier tile, or an earlier step of its
 * tile, or for a lower ticket, whose CTA runs: so none lasts.
 */
#pragma once
#include "cuda/kernel/backward/keys_sm90.cuh"

template <int DTYPE, int D, int STEP, int STAGES, GradSteps STEPS = GRAD_SCALED>
using OrderShape = GradShape<DTYPE, D, STEP, STAGES, 128 * STEP * 2 + STEP * D * 4, STEPS>;

/* An item, and what the block of keys before it does. */
struct OrderedItem {
    GradItem item;
    int first_head;    /* of query heads: the first one that the item has */
    uint32_t shares;   /* items that have heads of the group */
    int64_t key_place; /* among turns of blocks of keys */
    GradBlocks blocks, before;
    int64_t place; /* of tile 0 of the first head among turns */
    attn_band band;
    uint32_t from, all; /* number of its first tile among the CTA's; tiles of all heads */
    float unit;         /* of dS (range_sm90.cuh); LIGHT: 1 / a.kept, so that dP needs no factor */
    bool last;          /* there is no item: the CTA ends */

    __device__ __forceinline__ uint32_t end() const
    {
        return from + all;
    }
};

/* The rows that see keys `first` .. of an item of whole sequences (row_blocks, in 32 bits). */
template <class S>
__device__ __forceinline__ GradBlocks band_blocks(const attn_band &band, int first)
{
    const int last = min(first + S::FIXED, band.keys),
              lo = min(max(first - band.to + 1, 0), band.rows),
              hi = min(max(last - band.from, 0), band.rows), tile = lo / S::STEP;
    return {tile, first < last && lo < hi ? (hi + S::STEP - 1) / S::STEP - tile : 0};
}

/* What follows from the rest of an item. */
template <class S>
__device__ __forceinline__ void finish_item(const attn_cuda_backward_params &a, OrderedItem &o)
{
    o.all = (uint32_t)o.blocks.all();
    o.unit = S::LIGHT ? 1 / a.kept : score_unit<S::BF16>(a, o.item.sequence.index, o.item.head);
}

/* Makes an item of whole sequences number `index` of these. */
template <class S>
__device__ __forceinline__ void move_item(const attn_cuda_backward_params &a, OrderedItem &o,
                                          uint32_t index)
{
    const int group = (int)a.grads.problem.group;
    const GradPlace place = grad_whole_place(a.grads.problem, a.items, index);
    o.item.sequence.index = o.item.sequence.tensor = place.sequence;
    o.item.head = place.head;
    o.item.first = place.first;
    o.first_head = place.head * group;
    o.blocks = band_blocks<S>(a.band, place.first);
    o.before = band_blocks<S>(a.band, place.first + S::FIXED);
    o.blocks.heads = o.before.heads = group;
    o.place = ((int64_t)place.sequence * a.grads.problem.heads + o.first_head) * a.slots;
    finish_item<S>(a, o);
}

template <class S>
__device__ __forceinline__ void find_item(const attn_cuda_backward_params &a, OrderedItem &o,
                                          int64_t index)
{
    const attn_problem &p = a.grads.problem;
    o.item = grad_item(p, a.items, index);
    int64_t heads = p.group;
    o.shares = 1;
    if (a.items.shares > 1) {
        if (!o.item.sequence.outside) {
            heads = attn_cuda_grad_heads(&a.items, p.group, o.item.sequence.nq_used);
        }
        o.shares = (uint32_t)divide(p.group + heads - 1, heads);
        o.item.empty |= o.item.share >= o.shares;
        o.key_place = grad_key_place(p, a.items, o.item, a.key_slots);
    }
    o.first_head = (int)(o.item.head * p.group + o.item.share * heads);
    GradItem before = o.item;
    before.first += S::FIXED;
    o.band = attn_mask_band(&p, &o.item.sequence);
    o.blocks = row_blocks<S>(p, o.item);
    o.before = row_blocks<S>(p, before);
    o.blocks.heads = o.before.heads = (int)min(heads, p.group - o.item.share * heads);
    o.place = grad_tile_place(p, o.item, o.first_head, S::STEP, a.slots);
    finish_item<S>(a, o);
}

/* Rows of a tile are 64, so a warpgroup has half of the columns of dQ, or 128 in halves. Its
 * fragments of dQ: float4 number i of lane l of warp w of the two groups is (8 w + i) 32 + l. */
template <class S> struct QuerySums {
    static_assert(S::STEP * S::D == 2 * 64 * 64, "64 x 64 sums for each warpgroup");
    float dq[32];

    /* dS: chunks of 64 rows, keys along k. K: chunks of 64 columns. */
    __device__ __forceinline__ void issue(uint32_t ds, uint32_t k, int group)
    {
        const int at = group * 128 * 128;
        const uint64_t left = wgmma::descriptor(operand_at<S>(ds + (S::STEP == 128 ? at : 0)), 0),
                       right = wgmma::descriptor(operand_at<S>(k + (S::STEP == 64 ? at : 0)), 0);
#pragma unroll
        for (int step = 0; step < 128 / 16; step++) {
            wgmma::Product<S::BF16, 64>::template ss<1>(dq, left + step * 128, right + step * 128,
                                                        step > 0);
        }
        wgmma::commit();
    }

    __device__ __forceinline__ void stage(uint32_t sums) const
    {
        const uint32_t to = sums + (ptx::thread() - 128) / 32 * 8 * 512 + ptx::thread() % 32 * 16;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            ptx::store_shared_16(to + i * 512,
                                 {__float_as_uint(dq[4 * i]), __float_as_uint(dq[4 * i + 1]),
                                  __float_as_uint(dq[4 * i + 2]), __float_as_uint(dq[4 * i + 3])});
        }
    }
};

/* The n-th tile of an item: head of the group, and number of the tile. */
struct TileWalk {
    int head, tile;

    __device__ __forceinline__ TileWalk(const GradBlocks &blocks) : head(0), tile(blocks.first)
    {
    }

    __device__ __forceinline__ void next(const GradBlocks &blocks)
    {
        if (++tile == blocks.first + blocks.count) {
            tile = blocks.first, head++;
        }
    }
};

/* Whether no block of keys adds to the tile before this one. */
__device__ __forceinline__ bool adds_first(const GradBlocks &before, int tile)
{
    return tile < before.first || tile >= before.first + before.count;
}

/* Wide: where the sums of tile n go, in tiles; ~place: they are the first ones there. */
__device__ __forceinline__ int64_t &sum_place(uint32_t n)
{
    __shared__ int64_t places[2];
    return places[n % 2];
}

/* Of an item, for a thread that keeps its turns. */
struct ItemTurns {
    uint32_t block, from, end;
    GradBlocks blocks, before;
    int64_t place;

    __device__ __forceinline__ ItemTurns(const OrderedItem &o, int keys)
        : block((uint32_t)o.item.first / keys), from(o.from), end(o.end()), blocks(o.blocks),
          before(o.before), place(o.place)
    {
    }
};

/* One thread: says of each tile when it is this block's turn. */
template <class S>
__device__ __forceinline__ void await_turns(const attn_cuda_backward_params &a,
                                            const GradMemory<S> &memory, const ItemTurns &o)
{
    TileWalk at(o.blocks);
#pragma unroll 1
    for (uint32_t n = o.from; n < o.end; n++, at.next(o.blocks)) {
        const int64_t place = o.place + (int64_t)at.head * a.slots + at.tile;
        const bool first = adds_first(o.before, at.tile);
        ptx::mbarrier_wait(memory.room(n), (n / 2 & 1) ^ 1);
        while (!first && ptx::load_acquire(a.turns + place) != o.block + 2) {
        }
        if constexpr (S::WIDE) {
            sum_place(n) = first ? ~place : place;
        } else {
            ptx::fence_proxies();
        }
        ptx::mbarrier_arrive(memory.turn(n));
    }
}

/* Two threads, for tiles with even and with odd numbers: while sums of a tile arrive in global
 * memory those of the next one leave. Adds the sums of each tile in its turn, and gives the turn to
 * the next block. */
template <class S>
__device__ __forceinline__ void hand_turns_on(const attn_cuda_backward_params &a,
                                              const GradMemory<S> &memory, const ItemTurns &o,
                                              uint32_t odd)
{
    TileWalk at(o.blocks);
#pragma unroll 1
    for (uint32_t n = o.from; n < o.end; n++, at.next(o.blocks)) {
        if (n % 2 != odd) {
            continue;
        }
        const int64_t place = o.place + (int64_t)at.head * a.slots + at.tile;
        ptx::mbarrier_wait(memory.done(n), memory.parity(n));
        if constexpr (S::WIDE) {
            ptx::mbarrier_arrive(memory.room(n));
        } else {
            float *const to = a.sums + place * (S::STEP * S::D);
            ptx::mbarrier_wait(memory.turn(n), n / 2 & 1);
            if (adds_first(o.before, at.tile)) {
                tma::store_words(to, memory.sums(), S::SUMS_BYTES);
            } else {
                tma::add_floats(to, memory.sums(), S::SUMS_BYTES);
            }
            tma::commit_stores();
            tma::wait_stores_read();
            ptx::mbarrier_arrive(memory.room(n));
            tma::wait_stores();
            ptx::fence_proxies();
        }
        ptx::store_release(a.turns + place, o.block + 1);
    }
}

/* Draws the first item of a CTA. One thread, which has registers for any. */
template <class S>
__device__ __forceinline__ void draw_first(const attn_cuda_backward_params &a, OrderedItem &o)
{
    const int64_t index = a.items.count - 1 - ptx::atomic_add(a.ticket, 1);
    if (a.whole) {
        o.item = {attn_problem_whole_sequence(&a.grads.problem, 0)};
        o.shares = 1;
        o.band = a.band;
        move_item<S>(a, o, (uint32_t)index);
    } else {
        find_item<S>(a, o, index);
    }
    o.from = 0;
    o.last = o.item.empty;
}

/* Copies an item. thread: of THREADS that do so. */
template <int THREADS>
__device__ __forceinline__ void copy_item(OrderedItem &to, const OrderedItem &from, int thread)
{
    constexpr int WORDS = sizeof(OrderedItem) / 4;
    const uint32_t source = ptx::shared_address(&from) + 4 * thread,
                   target = ptx::shared_address(&to) + 4 * thread;
#pragma unroll
    for (int i = 0; i < WORDS; i += THREADS) {
        if (thread + i < WORDS) {
            ptx::store_shared_4(target + 4 * i,
                                __uint_as_float(ptx::load_shared_4(source + 4 * i)));
        }
    }
}

/* Draws the item behind one, if CTAs stay: whole sequences alone, for whose items registers of a
 * loader are enough. One warp. */
template <class S>
__device__ __forceinline__ void draw_next(const attn_cuda_backward_params &a, OrderedItem &o,
                                          const OrderedItem &before)
{
    copy_item<32>(o, before, ptx::thread());
    __syncwarp();
    if (ptx::thread() == 0) {
        const uint32_t ticket = a.whole ? ptx::atomic_add(a.ticket, 1) : ~0u,
                       count = (uint32_t)a.items.count;
        o.from += o.all;
        o.last = ticket >= count;
        o.all = 0;
        if (ticket < count) {
            move_item<S>(a, o, count - 1 - ticket);
        }
    }
    __syncwarp();
}

/* Tells the other threads of item k, as soon as all have seen the one before and need its keys no
 * more. Lane 0. */
template <class S, class Loader>
__device__ __forceinline__ void tell_item(const GradMemory<S> &memory, const OrderedItem &o,
                                          uint32_t k, const Loader &loader)
{
    ptx::mbarrier_wait(memory.keys_empty(), (k & 1) ^ 1);
    if (o.all > 0) {
        loader.load_keys(o);
    } else {
        ptx::mbarrier_arrive(memory.keys_full());
    }
}

/* Loads what a CTA's items take: tiles of the next item while the warpgroups end this one. Item k
 * lies in place k % 2; all others have copies of it when item k + 1 is told. One warp. */
template <class S, class Loader>
__device__ __forceinline__ void load_items(const attn_cuda_backward_params &a,
                                           const GradMemory<S> &memory, OrderedItem *items,
                                           const Loader &loader)
{
    if (ptx::thread() == 0) {
        tell_item<S>(memory, items[0], 0, loader);
    }
    __syncwarp();
#pragma unroll 1
    for (;;) {
        const uint32_t k = S::STAYS ? ptx::load_shared_4(memory.number(0)) : 0;
        const OrderedItem &o = items[k % 2];
        TileWalk at(o.blocks);
#pragma unroll 1
        for (uint32_t n = o.from; n < o.end(); n++, at.next(o.blocks)) {
            loader.load_rows(o, n, o.first_head + at.head, at.tile * S::STEP);
            if (ptx::thread() == 0 && k > 0 && n == o.from) {
                tell_item<S>(memory, o, k, loader);
            }
            __syncwarp();
        }
        if (ptx::thread() == 0 && k > 0 && o.all == 0) {
            tell_item<S>(memory, o, k, loader);
        }
        __syncwarp();
        if (o.last) {
            return;
        }
        if constexpr (!S::STAYS) {
            return;
        }
        draw_next<S>(a, items[(k + 1) % 2], o);
        if (ptx::thread() == 0) {
            ptx::store_shared_4(memory.number(0), __uint_as_float(k + 1));
        }
        __syncwarp();
    }
}

/* Copies the warpgroups' next item. Returns whether there is one. Both warpgroups. */
template <class S>
__device__ __forceinline__ bool take_item(const GradMemory<S> &memory, const OrderedItem *items,
                                          OrderedItem &o)
{
    const uint32_t k = ptx::load_shared_4(memory.number(1));
    ptx::mbarrier_wait(memory.keys_full(), k & 1);
    ptx::barrier_sync(5, 256); /* both are done with the item before */
    copy_item<256>(o, items[k % 2], ptx::thread() - 128);
    if (ptx::thread() == 128) {
        ptx::store_shared_4(memory.number(1), __uint_as_float(k + 1));
    }
    ptx::barrier_sync(5, 256);
    return !o.last;
}

/* Keeps the turns of an item with an even or odd number. Returns whether there is one. Each of
 * three threads. */
template <class S>
__device__ __forceinline__ bool keep_turns(const attn_cuda_backward_params &a,
                                           const GradMemory<S> &memory, const OrderedItem &item,
                                           uint32_t odd)
{
    ptx::mbarrier_wait(memory.keys_full(), odd);
    const ItemTurns o(item, S::FIXED);
    const bool last = item.last;
    ptx::mbarrier_arrive(memory.keys_empty());
    if (!last && ptx::thread() == 32) {
        await_turns<S>(a, memory, o);
    } else if (!last) {
        hand_turns_on<S>(a, memory, o, ptx::thread() / 32 - 2);
    }
    return !last;
}

/* Items of three warpgroups: a warp of the first one loads, three of its threads keep the turns,
 * and each of the others is a Group, which computes and stores. */
template <class S, class Group, class Loader>
__device__ __forceinline__ void run_ordered(const attn_cuda_backward_params &a)
{
    __shared__ OrderedItem items[2], own;
    __shared__ int row_of[S::STAGES * (S::DROPS ? 2 : 1)]; /* then heads, for steps */
    const GradMemory<S> memory = grad_memory<S>();
    if (threadIdx.x == 0) {
        memory.init_barriers(1 + 32);
        memory.init_turns();
        draw_first<S>(a, items[0]);
    }
    __syncthreads();
    if (items[0].last) {
        return;
    }
    if (ptx::uniform(threadIdx.x / 128) == 0) {
        ptx::registers_lower<24>();
        if (threadIdx.x < 32) {
            const GradMemory<S> mine = {(uint32_t)ptx::opaque((int)memory.base)};
            load_items<S>(a, mine, items, Loader{a, mine, row_of});
        } else if (threadIdx.x % 32 == 0) {
            while (keep_turns<S>(a, memory, items[0], 0) && S::STAYS &&
                   keep_turns<S>(a, memory, items[1], 1)) {
            }
        }
    } else {
        ptx::registers_raise<240>();
        if constexpr (!S::STAYS) {
            ptx::mbarrier_wait(memory.keys_full(), 0);
            Group mine = {a, memory, items[0], row_of};
            mine.run();
            mine.store();
            return;
        }
        while (take_item<S>(memory, items, own)) {
            Group mine = {a, memory, own, row_of};
            mine.run();
            if (ptx::thread() % 32 == 0) {
                ptx::mbarrier_arrive(memory.keys_empty());
            }
            mine.store();
        }
    }
}
