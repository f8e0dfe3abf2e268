/*
 * pair_sm90.cuh: pairs of CTAs that have the keys of an item together (wide_sm90.cuh): their items,
 * loads and turns, by the first warpgroup's four warps. A pair has one item.
 *
 * Barriers of tile n, who completes them, and who waits:
 *
 *     full       both loaders: Q; LSE and delta are there       the warps
 *     empty      8 warps of each CTA: dK is done                the loaders, before n + 2
 *     d_o full   both loaders: dO is there                      the warps
 *     d_o empty  8 warps of each CTA: dV is done                the loader, before n + 1
 *     scored     8 warps: dS is there                           the warps, serve_pair
 *     given      the other CTA: its dS is there                 the warps
 *     taken      8 warps of the other CTA: they need dS of      serve_pair, before it copies n + 1,
 *                this one no more                               and at the end; the warps, before
 *                                                               dS of n + 2
 *     done       8 warps: half of dQ is in shared memory        hand_pair_turns_on
 *     turn       await_pair_turns: the block behind has added   hand_pair_turns_on
 *     room       hand_pair_turns_on: half of dQ has left        the warps, before the next half;
 *                                                               await_pair_turns, before n + 1
 *
 * Of done and room there is one for each half. Each CTA loads half of the columns of Q and dO for
 * both, so a stage is free when both have given it back.
 */
#pragma once
#include "cuda/kernel/backward/run_sm90.cuh"

/* Whether V of the item is there, and what the CTA has of the other half's K. Its own K: keys_full.
 */
template <class S> __device__ __forceinline__ uint32_t values_full(const GradMemory<S> &memory)
{
    return memory.keys_empty();
}

/* One thread. */
template <class S> __device__ __forceinline__ void init_pair(const GradMemory<S> &memory)
{
    memory.init_barriers(1 + 32);
    ptx::mbarrier_init(memory.keys_full(), 1);
    ptx::mbarrier_init(values_full(memory), 1);
    for (int n = 0; n < 2; n++) {
        ptx::mbarrier_init(memory.done(n), CONSUMER_WARPS);
        ptx::mbarrier_init(memory.turn(n), 1);
        ptx::mbarrier_init(memory.room(n), 1);
        ptx::mbarrier_init(memory.given(n), 1);
        ptx::mbarrier_init(memory.taken(n), CONSUMER_WARPS);
        ptx::mbarrier_init(memory.scored(n), CONSUMER_WARPS);
    }
    ptx::fence_mbarrier_init();
}

/* Finds the item of a pair, which has a ticket. All threads. */
template <class S>
__device__ __forceinline__ void draw_pair(const attn_cuda_backward_params &a,
                                          const GradMemory<S> &memory, OrderedItem &o)
{
    __shared__ uint32_t ticket;
    ptx::begin_next_launch();
    await_last_launch<S>(a);
    if (threadIdx.x == 0) {
        init_pair(memory);
        if (cluster::rank() == 0) {
            ticket = ptx::atomic_add(a.ticket, 1);
        }
    }
    cluster::arrive();
    cluster::wait();
    if (threadIdx.x == 0) {
        draw_first<S>(a, o, cluster::load_4(ptx::shared_address(&ticket), 0));
    }
    __syncthreads();
}

/* Where rows of K and V from key `first` of a sequence on begin. A half of a pair that lies behind
 * the last key is zeros, as what lies behind the tensor is. */
__device__ __forceinline__ int pair_row(const attn_cuda_backward_params &a, const OrderedItem &o,
                                        int first)
{
    const attn_sequence &sequence = o.item.sequence;
    return (int)(first < sequence.k_rows ? sequence.k_first + first : a.grads.problem.k.shape[1]);
}

/* Loads the CTA's half of the columns of a tile of rows, for both CTAs. One thread. */
template <class S>
__device__ __forceinline__ void load_for_pair(uint32_t to, const attn_tensor_map *map,
                                              uint32_t barrier, int row, int head, int batch)
{
    static_assert(S::BOX == S::STEP, "a chunk is a box");
    const int first = (int)cluster::rank() * (S::D / 128);
    for (int chunk = first; chunk < first + S::D / 128; chunk++) {
        tma::load_for_both(to + chunk * S::STEP * 128, map, barrier, chunk * 64, row, head, batch,
                           tma::EVICT_LAST);
    }
}

/* Loads K and V of an item, the columns of the other half's K for which this CTA has dQ, and its
 * half of Q of tiles; copies dS of each tile to the other CTA. One thread. */
template <class S>
__device__ __forceinline__ void serve_pair(const attn_cuda_backward_params &a,
                                           const GradMemory<S> &memory, const OrderedItem &o)
{
    const uint32_t keys = memory.keys_full(), values = values_full(memory);
    const int kv = (int)o.item.head, batch = (int)o.item.sequence.tensor,
              own = pair_row(a, o, (int)o.item.first),
              other = pair_row(a, o, (int)o.item.first ^ S::FIXED);
    ptx::mbarrier_arrive_expect(keys, S::FIXED_BYTES);
    ptx::mbarrier_arrive_expect(values, S::FIXED_BYTES + S::FIXED_BYTES / 2);
    load_tile<S>(memory.fixed(0), &a.k_map, keys, S::FIXED, own, kv, batch, tma::EVICT_FIRST);
    TileWalk at(o.blocks);
#pragma unroll 1
    for (uint32_t n = 0; n < o.all + 2; n++, at.next(o.blocks)) { /* Q of n, dS of n - 2 */
        if (n > 1) {
            ptx::mbarrier_wait(memory.scored(n), (n / 2 & 1) ^ 1);
            if (n > 2) {
                ptx::mbarrier_wait(memory.taken(n - 3), (n - 3) / 2 & 1);
            }
            cluster::copy(memory.other_scores(), memory.scores(n), S::FIXED * S::STEP * 2,
                          memory.given(n), cluster::rank() ^ 1);
        }
        if (n < o.all) {
            const uint32_t full = memory.stages().full(n);
            memory.stages().await_empty(n);
            ptx::mbarrier_arrive_expect(full, S::STEP_BYTES);
            load_for_pair<S>(memory.streamed(n, 0), &a.q_map, full,
                             (int)o.item.sequence.q_first + at.tile * S::STEP,
                             o.first_head + at.head, batch);
        }
        if (n == 0) {
            load_tile<S>(memory.fixed(1), &a.v_map, values, S::FIXED, own, kv, batch,
                         tma::EVICT_FIRST);
            for (int chunk = 0; chunk < 2; chunk++) {
                tma::load(memory.other_keys() + chunk * S::FIXED * 128, &a.k_map, values,
                          (2 * chunk + (int)cluster::rank()) * 64, other, kv, batch,
                          tma::EVICT_FIRST);
            }
        }
    }
    /* dS of the last tile is read from this CTA, which is there until the other one has it */
    ptx::mbarrier_wait(memory.taken(o.all - 1), (o.all - 1) / 2 & 1);
}

/* Loads LSE, delta and the CTA's half of dO of tiles. LSE and delta are in registers before there
 * is room. One warp. */
template <class S>
__device__ __forceinline__ void load_pair_rows(const attn_cuda_backward_params &a,
                                               const GradMemory<S> &memory, const OrderedItem &o,
                                               int *row_of)
{
    const int lane = ptx::thread() % 32;
    TileWalk at(o.blocks);
    if constexpr (S::FOLLOWS) {
        await_delta(a, o);
    }
#pragma unroll 1
    for (uint32_t n = 0; n < o.all; n++, at.next(o.blocks)) {
        const int row = at.tile * S::STEP, head = o.first_head + at.head;
        const int64_t place = grad_row_place(a.grads.problem, o.item.sequence, head) + row + lane;
        float lse[S::STEP / 32], delta[S::STEP / 32];
#pragma unroll
        for (int i = 0; i < S::STEP / 32; i++) {
            const bool inside = row + lane + 32 * i < o.item.sequence.nq_used;
            lse[i] = inside ? ((const float *)a.lse)[place + 32 * i] : INFINITY;
            delta[i] = inside ? ((const float *)a.delta)[place + 32 * i] : 0;
        }
        memory.stages().await_empty(n);
#pragma unroll
        for (int i = 0; i < S::STEP / 32; i++) {
            const uint32_t to = memory.statistics(n) + 4 * (lane + 32 * i);
            ptx::store_shared_4(to, S::statistic(lse[i]));
            ptx::store_shared_4(to + 4 * S::STEP, delta[i] * o.unit);
        }
        if (lane == 0) {
            row_of[n % S::STAGES] = row;
            if constexpr (S::HAS_HEADS) {
                row_of[S::STAGES + n % S::STAGES] = head;
            }
        }
        ptx::mbarrier_arrive(memory.stages().full(n));
        if (lane == 0) {
            const uint32_t full = memory.d_o_stages().full(n);
            memory.d_o_stages().await_empty(n);
            ptx::mbarrier_arrive_expect(full, S::STEP_BYTES);
            load_for_pair<S>(memory.streamed(n, 1), &a.d_o_map, full,
                             (int)o.item.sequence.q_first + row, head, (int)o.item.sequence.tensor);
        }
        __syncwarp();
    }
}

/* The word of a tile's turn: each CTA of a pair has columns of its own. */
__device__ __forceinline__ uint32_t *pair_turn(const attn_cuda_backward_params &a, int64_t place)
{
    return a.turns + 2 * place + cluster::rank();
}

/* Says of each tile when it is this block's turn. hand_pair_turns_on has seen the tile before when
 * its first half has left. One thread. */
template <class S>
__device__ __forceinline__ void await_pair_turns(const attn_cuda_backward_params &a,
                                                 const GradMemory<S> &memory, const ItemTurns &o)
{
    TileWalk at(o.blocks);
#pragma unroll 1
    for (uint32_t n = 0; n < o.end; n++, at.next(o.blocks)) {
        const int64_t place = o.place + (int64_t)at.head * a.slots + at.tile;
        const bool first = adds_first(o.before, at.tile);
        cluster::sleep(memory.room(0), (n & 1) ^ 1);
        while (!first && ptx::load_acquire(pair_turn(a, place)) != o.block + 2) {
        }
        ptx::fence_proxies();
        ptx::mbarrier_arrive(memory.turn(n));
    }
}

/* Adds half of the sums of tile n to those there, or stores them, if they are the first ones. */
template <class S, int HALF>
__device__ __forceinline__ void add_half(const GradMemory<S> &memory, uint32_t n, float *to,
                                         bool first)
{
    constexpr uint32_t BYTES = S::SUMS_BYTES / 4;
    cluster::sleep(memory.done(HALF), n & 1);
    if (first) {
        tma::store_words(to + HALF * (BYTES / 4), memory.half_sums(), BYTES);
    } else {
        tma::add_floats(to + HALF * (BYTES / 4), memory.half_sums(), BYTES);
    }
    tma::commit_stores();
    tma::wait_stores_read();
    ptx::mbarrier_arrive(memory.room(HALF));
}

/* Adds the sums of each tile in its turn, and gives the turn to the next block. One thread. */
template <class S>
__device__ __forceinline__ void hand_pair_turns_on(const attn_cuda_backward_params &a,
                                                   const GradMemory<S> &memory, const ItemTurns &o)
{
    TileWalk at(o.blocks);
#pragma unroll 1
    for (uint32_t n = 0; n < o.end; n++, at.next(o.blocks)) {
        const int64_t place = o.place + (int64_t)at.head * a.slots + at.tile;
        float *const to = a.sums + (2 * place + cluster::rank()) * (S::STEP * S::D / 2);
        const bool first = adds_first(o.before, at.tile);
        cluster::sleep(memory.turn(n), n / 2 & 1);
        add_half<S, 0>(memory, n, to, first);
        add_half<S, 1>(memory, n, to, first);
        tma::wait_stores();
        ptx::fence_proxies();
        ptx::store_release(pair_turn(a, place), o.block + 1);
    }
}

/* A CTA of a pair: the first warpgroup serves, each of the others is a Group, which computes and
 * stores. */
template <class S, class Group>
__device__ __forceinline__ void run_pair(const attn_cuda_backward_params &a)
{
    __shared__ OrderedItem item;
    __shared__ int row_of[S::STAGES * (S::HAS_HEADS ? 2 : 1)]; /* then heads, for steps */
    const GradMemory<S> memory = grad_memory<S>();
    draw_pair<S>(a, memory, item);
    if (item.last || item.all == 0) { /* nothing else keeps a CTA while the other one asks it */
        cluster::arrive();
        cluster::wait();
    }
    if (blockIdx.x == gridDim.x - 1) { /* launches behind this one wait for this one alone */
        ptx::wait_for_last_launch();
    }
    if (item.last) {
        return;
    }
    if (ptx::uniform(threadIdx.x / 128) == 0) {
        ptx::registers_lower<24>();
        const GradMemory<S> mine = {(uint32_t)ptx::opaque((int)memory.base)};
        const int warp = ptx::uniform(threadIdx.x / 32);
        if (item.all == 0) {
            return;
        }
        if (warp == 3) {
            load_pair_rows<S>(a, mine, item, row_of);
        } else if (threadIdx.x == 0) {
            serve_pair<S>(a, mine, item);
        } else if (threadIdx.x == 32) {
            await_pair_turns<S>(a, mine, ItemTurns(item, S::KEYS));
        } else if (threadIdx.x == 64) {
            hand_pair_turns_on<S>(a, mine, ItemTurns(item, S::KEYS));
        }
    } else {
        ptx::registers_raise<240>();
        Group mine = {a, memory, item, row_of};
        mine.run();
        mine.store();
    }
}
