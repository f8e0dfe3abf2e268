/*
 * turns_sm90.cuh: the order in which blocks of keys add to dQ (ordered_sm90.cuh), by three threads
 * beside those that compute. Wide kernels have their own (pair_sm90.cuh).
 *
 * Barriers of tile n, who completes them, and who waits:
 *
 *     full    the loader: Q, dO, LSE, delta are there     the warps
 *     empty   8 warps: they have read them                the loader, before tile n + STAGES
 *     done    8 warps: sums of dQ are in shared memory    hand_turns_on
 *     turn    await_turns: the block behind has added     hand_turns_on
 *     room    hand_turns_on: the sums have left           the warps, before the sums of n + 1;
 *                                                         await_turns, before turn of n + 2
 *
 * The block that adds last, if it rounds (round_sm90.cuh), adds in shared memory:
 *
 *     turn    await_turns: sums of the others are there   the warps
 *     done    8 warps: dQ is there in 16 bits             hand_rounded_on
 *     room    hand_rounded_on: it has left                await_turns, before turn of n + 1
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
 * and await_turns have seen room of n. Where the block rounds, turn of n + 1 follows room of n,
 * which follows done of n, before which the warps saw turn of n. Each wait is for an earlier tile,
 * or an earlier step of its tile, or for a lower ticket, whose CTA runs, or for delta_ahead, whose
 * CTAs run: so none lasts.
 */
#pragma once
#include "cuda/kernel/backward/keys_sm90.cuh"
#include "cuda/kernel/ptx/bulk.cuh"
#include "cuda/kernel/ptx/cluster.cuh"

template <int D, int STEP, GradSteps STEPS>
constexpr int GRAD_ROOM = STEPS == GRAD_MASKED ? ATTN_GRAD_MASK_ROOM(D, STEP)
                          : STEPS == GRAD_BIASED
                              ? ATTN_GRAD_BIAS_ROOM(D, STEP)
                              : ATTN_GRAD_ROOM(D, STEP, (STEPS & GRAD_TABLED) != 0);

template <int DTYPE, int D, int STEP, int STAGES, GradSteps STEPS = GRAD_SCALED, bool STAYS = false>
using OrderShape = GradShape<DTYPE, D, STEP, STAGES, GRAD_ROOM<D, STEP, STEPS>, STEPS, STAYS>;

/* An item has all tiles of rows that see its keys, or those ahead of its rest, or it is the rest
 * (rests_sm90.cuh). */
enum GradPart : int { GRAD_WHOLE, GRAD_AHEAD, GRAD_REST };

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
    GradPart part;      /* RESTS */
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
    const int last = min(first + S::KEYS, band.keys),
              lo = min(max(first - band.to + 1, 0), band.rows),
              hi = min(max(last - band.from, 0), band.rows), tile = lo / S::STEP;
    return {tile, first < last && lo < hi ? (hi + S::STEP - 1) / S::STEP - tile : 0};
}

/* OrderedItem.unit. Found ahead of all that takes a loader's registers. */
template <class S>
__device__ __forceinline__ float item_unit(const attn_cuda_backward_params &a, const GradItem &item)
{
    return S::OUTSIDE ? 1 / a.kept : score_unit<S::BF16>(a, item.sequence.index, item.head);
}

/* What follows from the rest of an item. Wide: the CTA's own keys. */
template <class S>
__device__ __forceinline__ void finish_item(const attn_cuda_backward_params &a, OrderedItem &o)
{
    if constexpr (S::WIDE) {
        o.item.first += S::FIXED * cluster::rank();
        o.key_place = 2 * o.key_place + cluster::rank();
    }
    o.all = (uint32_t)o.blocks.all();
}

/* Makes of an item the part ahead of its rest, if it has one, or the rest. head: the number of its
 * head from the last one of all sequences on. */
template <class S>
__device__ __forceinline__ void cut_item(const attn_cuda_backward_params &a, OrderedItem &o,
                                         uint32_t head, uint32_t block, bool rest)
{
    const attn_cuda_grad_rests &rests = a.items.rests;
    o.part = GRAD_WHOLE;
    if (head < (uint32_t)rests.heads && block < (uint32_t)rests.blocks) {
        const int at = rests.from + (int)(head * rests.step / 16), first = o.blocks.first,
                  end = first + o.blocks.count;
        o.part = rest ? GRAD_REST : GRAD_AHEAD;
        o.blocks.first = rest ? max(first, at) : first;
        o.blocks.count = max((rest ? end : min(end, at)) - o.blocks.first, 0);
        o.key_place = head * rests.blocks + block;
    }
}

/* Makes the item of whole sequences that has a ticket. */
template <class S>
__device__ __forceinline__ void move_item(const attn_cuda_backward_params &a, OrderedItem &o,
                                          uint32_t ticket)
{
    const int group = (int)a.grads.problem.group;
    const uint32_t count = (uint32_t)a.items.count;
    const bool rest = S::RESTS && ticket >= count;
    const GradPlace place = rest ? grad_rest_place(a.grads.problem, a.items, ticket - count)
                                 : grad_whole_place(a.grads.problem, a.items, count - 1 - ticket);
    o.item.sequence.index = o.item.sequence.tensor = place.sequence;
    o.item.head = place.head;
    o.item.first = place.first;
    o.unit = item_unit<S>(a, o.item);
    o.first_head = place.head * group;
    o.blocks = band_blocks<S>(a.band, place.first);
    o.before = band_blocks<S>(a.band, place.first + S::KEYS);
    o.blocks.heads = o.before.heads = group;
    if constexpr (S::RESTS) {
        const uint32_t batches = (uint32_t)a.grads.problem.batch - place.sequence;
        cut_item<S>(a, o, batches * (uint32_t)a.items.heads - place.head - 1, place.first / S::KEYS,
                    rest);
    }
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
    o.unit = item_unit<S>(a, o.item);
    GradItem before = o.item;
    before.first += S::KEYS;
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

    /* Where the thread's first fragment lies in shared memory. */
    static __device__ __forceinline__ uint32_t place(uint32_t sums)
    {
        const int thread = thread_number();
        return sums + (thread - 128) / 32 * 8 * 512 + thread % 32 * 16;
    }

    __device__ __forceinline__ void stage(uint32_t sums) const
    {
        store(place(sums));
    }

    /* The same, from the thread's first fragment on. */
    __device__ __forceinline__ void store(uint32_t to) const
    {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            ptx::store_shared_16(to + i * 512,
                                 {__float_as_uint(dq[4 * i]), __float_as_uint(dq[4 * i + 1]),
                                  __float_as_uint(dq[4 * i + 2]), __float_as_uint(dq[4 * i + 3])});
        }
    }
};

/* Gives the sums of dQ of tile n to the TMA, late, as the fence waits for all stores. All lanes. */
template <class S>
__device__ __forceinline__ void give_sums(const GradMemory<S> &memory, uint32_t n)
{
    ptx::fence_proxy_async();
    __syncwarp(); /* all lanes have written dS and read the statistics */
    if (thread_number() % 32 == 0) {
        ptx::mbarrier_arrive(memory.done(n));
    }
}

/* Adds to sums of dQ those that lie in shared memory. */
template <class S> __device__ __forceinline__ void add_staged(QuerySums<S> &query, uint32_t sums)
{
    const uint32_t from = query.place(sums);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint4 x = ptx::load_shared_16(from + i * 512);
        float *const to = query.dq + 4 * i;
        to[0] = tma::sum_of(__uint_as_float(x.x), to[0]);
        to[1] = tma::sum_of(__uint_as_float(x.y), to[1]);
        to[2] = tma::sum_of(__uint_as_float(x.z), to[2]);
        to[3] = tma::sum_of(__uint_as_float(x.w), to[3]);
    }
}

/* A warp's part of a tile of dQ in 16 bits takes the place of half of its sums. */
enum { ROUNDED_BYTES = 8 * 512 };

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

/* Of an item, for a thread that keeps its turns. */
struct ItemTurns {
    uint32_t block, from, end;
    GradBlocks blocks, before;
    int64_t place;
    int first_head, tensor;

    __device__ __forceinline__ ItemTurns(const OrderedItem &o, int keys)
        : block((uint32_t)o.item.first / keys), from(o.from), end(o.end()), blocks(o.blocks),
          before(o.before), place(o.place), first_head(o.first_head),
          tensor((int)o.item.sequence.tensor)
    {
    }
};

/* Whether an item's block of keys is the last one to add to dQ, and rounds it itself. */
template <class S> __device__ __forceinline__ bool rounds(int64_t first_key)
{
    return S::ROUNDS && first_key == 0;
}

/* One thread: says of each tile when it is this block's turn. The last block gets the sums of the
 * others. */
template <class S>
__device__ __forceinline__ void await_turns(const attn_cuda_backward_params &a,
                                            const GradMemory<S> &memory, const ItemTurns &o)
{
    const bool last = rounds<S>(o.block);
    TileWalk at(o.blocks);
#pragma unroll 1
    for (uint32_t n = o.from; n < o.end; n++, at.next(o.blocks)) {
        const int64_t place = o.place + (int64_t)at.head * a.slots + at.tile;
        const bool first = adds_first(o.before, at.tile);
        ptx::mbarrier_wait(memory.room(n), (n / 2 & 1) ^ 1);
        while (!first && ptx::load_acquire(a.turns + place) != o.block + 2) {
        }
        if (last) {
            ptx::mbarrier_wait(memory.room(n + 1), ((n + 1) / 2 & 1) ^ 1);
        }
        ptx::fence_proxies();
        if (last && !first) {
            ptx::mbarrier_arrive_expect(memory.turn(n), S::SUMS_BYTES);
            tma::load_words(memory.sums(), a.sums + place * (S::STEP * S::D), S::SUMS_BYTES,
                            memory.turn(n));
        } else {
            ptx::mbarrier_arrive(memory.turn(n));
        }
    }
}

/* Two threads, for tiles with even and with odd numbers: while a tile arrives in global memory the
 * next one leaves. send begins the copies of one that is there, sent follows once all is read. */
template <class S, class Send, class Sent>
__device__ __forceinline__ void send_tiles(const GradMemory<S> &memory, const ItemTurns &o,
                                           uint32_t odd, const Send &send, const Sent &sent)
{
    TileWalk at(o.blocks);
#pragma unroll 1
    for (uint32_t n = o.from; n < o.end; n++, at.next(o.blocks)) {
        if (n % 2 != odd) {
            continue;
        }
        ptx::mbarrier_wait(memory.done(n), memory.stages().parity(n));
        send(at, n);
        tma::commit_stores();
        tma::wait_stores_read();
        ptx::mbarrier_arrive(memory.room(n));
        sent(at);
    }
}

/* Adds the sums of each tile in its turn, and gives the turn to the next block. */
template <class S>
__device__ __forceinline__ void hand_turns_on(const attn_cuda_backward_params &a,
                                              const GradMemory<S> &memory, const ItemTurns &o,
                                              uint32_t odd)
{
    const auto place = [&](const TileWalk &at) {
        return o.place + (int64_t)at.head * a.slots + at.tile;
    };
    send_tiles(
        memory, o, odd,
        [&](const TileWalk &at, uint32_t n) {
            float *const to = a.sums + place(at) * (S::STEP * S::D);
            ptx::mbarrier_wait(memory.turn(n), n / 2 & 1);
            if (adds_first(o.before, at.tile)) {
                tma::store_words(to, memory.sums(), S::SUMS_BYTES);
            } else {
                tma::add_floats(to, memory.sums(), S::SUMS_BYTES);
            }
        },
        [&](const TileWalk &at) {
            tma::wait_stores();
            ptx::fence_proxies();
            ptx::store_release(a.turns + place(at), o.block + 1);
        });
}

/* For the last block of keys: stores tiles of dQ, which lie where their sums were (round_tile). */
template <class S>
__device__ __forceinline__ void hand_rounded_on(const attn_cuda_backward_params &a,
                                                const GradMemory<S> &memory, const ItemTurns &o,
                                                uint32_t odd)
{
    send_tiles(
        memory, o, odd,
        [&](const TileWalk &at, uint32_t) {
#pragma unroll 1
            for (int warp = 0; warp < 8; warp++) {
                tma::store(&a.dq_map, memory.sums() + warp * ROUNDED_BYTES,
                           S::STEP == 64 ? warp / 4 * 64 : 0,
                           at.tile * S::STEP + (S::STEP == 64 ? warp % 4 : warp) * 16,
                           o.first_head + at.head, o.tensor);
            }
        },
        [](const TileWalk &) {});
}
