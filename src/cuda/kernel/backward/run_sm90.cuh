/*
 * run_sm90.cuh: the CTAs of kernels whose blocks of keys take turns (turns_sm90.cuh). Whole
 * sequences: a CTA does one item after the other, and the next one's tiles arrive while its
 * warpgroups end the one before. Others: one item a CTA, since a loader's registers are few.
 */
#pragma once
#include "cuda/kernel/backward/helper_sm90.cuh"

/* Tickets that have items. */
template <class S> __device__ __forceinline__ int64_t tickets(const attn_cuda_backward_params &a)
{
    const attn_cuda_grad_rests &rests = a.items.rests;
    return a.items.count + (S::RESTS ? rests.heads * rests.blocks : 0);
}

/* Waits for the launch ahead, unless this one runs beside it. */
template <class S>
__device__ __forceinline__ void await_last_launch(const attn_cuda_backward_params &a)
{
    if (!S::FOLLOWS || a.ahead == 0) {
        ptx::wait_for_last_launch();
    }
}

/* Waits until delta_ahead has found LSE and delta of an item's rows. A warp. */
__device__ __forceinline__ void await_delta(const attn_cuda_backward_params &a,
                                            const OrderedItem &o)
{
    enum { UNITS = ATTN_GRAD_CHUNK_UNITS };
    const uint32_t heads = (uint32_t)a.grads.problem.heads,
                   behind =
                       ((uint32_t)a.grads.problem.batch - (uint32_t)o.item.sequence.index) * heads -
                       (uint32_t)o.first_head,
                   due = (behind * a.units + UNITS - 1) / UNITS;
#pragma unroll 1
    for (uint32_t i = ptx::thread() % 32; i < a.ahead; i += 32) {
        while (ptx::load_acquire(a.next_chunk + i) < due) {
        }
    }
    __syncwarp();
}

/* Finds the first item of a CTA, if those that began earlier have left one. One thread, which has
 * registers for any. */
template <class S>
__device__ __forceinline__ void draw_first(const attn_cuda_backward_params &a, OrderedItem &o,
                                           uint32_t ticket)
{
    o.last = ticket >= tickets<S>(a);
    if (o.last) {
        return;
    }
    if (a.whole) {
        o.item = {attn_problem_whole_sequence(&a.grads.problem, 0)};
        o.shares = 1;
        o.band = a.band;
        move_item<S>(a, o, ticket);
    } else {
        o.part = GRAD_WHOLE;
        find_item<S>(a, o, a.items.count - 1 - ticket);
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
        const uint32_t ticket = a.whole ? ptx::atomic_add(a.ticket, 1) : ~0u;
        o.from += o.all;
        o.last = ticket >= (uint32_t)tickets<S>(a);
        o.all = 0;
        if (!o.last) {
            move_item<S>(a, o, ticket);
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
        if constexpr (S::FOLLOWS) {
            await_delta(a, o);
        }
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

/* Says that a warp needs the item's K and V no more, behind its LAST tile. leaves: what lies in
 * their place has yet to be read by the TMA. All lanes. */
template <class S, bool LAST = true>
__device__ __forceinline__ void release_keys(const GradMemory<S> &memory, bool leaves = false)
{
    if (LAST && S::STAYS && ptx::thread() % 32 == 0) {
        if (leaves) {
            tma::wait_stores_read();
        }
        ptx::mbarrier_arrive(memory.keys_empty());
    }
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
    } else if (!last && rounds<S>(o.block)) {
        hand_rounded_on<S>(a, memory, o, ptx::thread() / 32 - 2);
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
    /* then heads, for steps, and slopes, or DROPPED: streams (drops_sm90.cuh) */
    __shared__ int row_of[S::STAGES * (S::HAS_SLOPES || S::DROPPED ? 3 : S::HAS_HEADS ? 2 : 1)];
    const GradMemory<S> memory = grad_memory<S>();
    ptx::begin_next_launch();
    if (threadIdx.x == 0) {
        memory.init_barriers(1 + 32);
        memory.init_turns();
        if constexpr (S::HELPED) {
            init_bits();
        }
    }
    await_last_launch<S>(a);
    if (threadIdx.x == 0) {
        draw_first<S>(a, items[0], ptx::atomic_add(a.ticket, 1));
    }
    __syncthreads();
    if (items[0].last) {
        ptx::wait_for_last_launch();
        return;
    }
    if (ptx::uniform(threadIdx.x / 128) == 0) {
        ptx::registers_lower<24>();
        if (threadIdx.x < 32) {
            const GradMemory<S> mine = {(uint32_t)ptx::opaque((int)memory.base)};
            load_items<S>(a, mine, items, Loader{a, mine, row_of});
            ptx::wait_for_last_launch(); /* launches behind this one wait for this one alone */
        } else if (threadIdx.x % 32 == 0) {
            while (keep_turns<S>(a, memory, items[0], 0) && S::STAYS &&
                   keep_turns<S>(a, memory, items[1], 1)) {
            }
        }
    } else if (S::HELPED && ptx::uniform(threadIdx.x / 128) == 3) {
        ptx::registers_lower<72>();
        if constexpr (S::HELPED) {
            uint32_t odd = 0;
#pragma unroll 1
            while (help<S>(a, memory, items[odd], odd)) {
                odd ^= 1;
            }
        }
    } else {
        ptx::registers_raise<S::HELPED ? 208 : 240>();
        if constexpr (!S::STAYS) {
            ptx::mbarrier_wait(memory.keys_full(), 0);
            Group mine = {a, memory, items[0], row_of};
            mine.run();
            mine.store();
        } else {
            while (take_item<S>(memory, items, own)) {
                Group mine = {a, memory, own, row_of};
                mine.run();
                mine.store();
            }
            tma::wait_stores_read();
        }
    }
}
