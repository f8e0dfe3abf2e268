/*
 * swap_sm90.cuh: the tile loop of forward_sm90 where V is the first columns of K and head dims go
 * beyond 256 (WideShape with a view): two warpgroups share 64 rows of Q and take the blocks of keys
 * in turn. A block's owner computes its scores and probabilities, once; each multiplies them with
 * its half of V's columns.
 *
 *     owner    wait tile | Q K^T | softmax | P, base to shared memory | P V, its half | tile back
 *     other    .. its own block before ..  |                          | P V, its half | tile back
 *
 * P goes where the last columns of K lie, which are not in V: they have been read by then. Each
 * half of a tile's columns comes and goes by itself, since the two warpgroups are done with them at
 * different times; the last columns go with the half of the other, which reads P.
 */
#pragma once
#include "cuda/kernel/forward/products_sm90.cuh"

/* Scores of a block: products of the chunks of 64 columns FROM .. TO - 1. */
template <class S, int FROM, int TO>
__device__ __forceinline__ void issue_chunks(float (&s)[S::BN / 2], uint32_t q, uint32_t k)
{
    const uint64_t a = wgmma::descriptor(ptx::uniform(q), 0),
                   b = wgmma::descriptor(ptx::uniform(k), 0);
#pragma unroll
    for (int step = 4 * FROM; step < 4 * TO; step++) {
        const int chunk = step / 4, within = step % 4 * 2;
        wgmma::Product<S::BF16, S::BN>::ss(s, a + chunk * S::BM * 8 + within,
                                           b + chunk * S::BN * 8 + within, step > 0);
    }
}

/* O += P V of a block, with P in shared memory at p. */
template <class S>
__device__ __forceinline__ void issue_swapped(float (&o)[S::DV / 2], uint32_t p, uint32_t v,
                                              int accumulate)
{
    const uint64_t a = wgmma::descriptor(ptx::uniform(p), 0),
                   b = wgmma::descriptor(ptx::uniform(v), S::BN * 128);
#pragma unroll
    for (int step = 0; step < S::BN / 16; step++) {
        wgmma::Product<S::BF16, S::DV>::template ss<0, 1>(o, a + 2 * step, b + step * 128,
                                                          step == 0 ? accumulate : 1);
    }
    wgmma::commit();
}

/* A warpgroup at an item: its place, and what it tells the other one. */
template <class S> struct Swap {
    const Memory<S> &memory;
    int group;     /* of the two */
    uint32_t item; /* number of the item, of which only the parity counts */

    __device__ __forceinline__ bool leads() const
    {
        return threadIdx.x % 128 == 0;
    }
    /* The thread's row r of the 64. */
    __device__ __forceinline__ int row(int r) const
    {
        return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * r;
    }
    /* Barriers of the half of tile n that a group multiplies with P. */
    __device__ __forceinline__ uint32_t full(uint32_t n) const
    {
        return group == 0 ? memory.k_full(n) : memory.v_full(n);
    }
    __device__ __forceinline__ void give_back(uint32_t n) const
    {
        if (leads()) {
            ptx::mbarrier_arrive(group == 0 ? memory.k_empty(n) : memory.v_empty(n));
        }
    }
    __device__ __forceinline__ uint32_t columns(uint32_t n) const
    {
        return memory.v(n) + group * S::DV * (S::BN * 2);
    }
    static __device__ __forceinline__ uint32_t p(const Memory<S> &memory, uint32_t n)
    {
        return memory.k(n) + (S::WIDE / 64 - 1) * S::BN * 128;
    }

    /* Puts P of block n and the bases of its rows where the other group finds them. The warps meet
     * since all read the columns in whose place P goes. */
    __device__ __forceinline__ void tell(uint32_t n, const uint32_t (&p_)[S::BN / 4],
                                         const RowState (&state)[2]) const
    {
        const int lane = threadIdx.x % 32, place = threadIdx.x / 32 % 4 * 16 + lane % 16;
        const uint32_t to = p(memory, n) + place * 128;
        meet<S>();
#pragma unroll
        for (int step = 0; step < S::BN / 16; step++) {
            ptx::store_matrices(to + ((2 * step + lane / 16) ^ place % 8) * 16, p_[4 * step],
                                p_[4 * step + 1], p_[4 * step + 2], p_[4 * step + 3]);
        }
        if (lane % 4 == 0) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                memory.swapped(group, row(r)) = make_float2(state[r].base, state[r].l);
            }
        }
        ptx::fence_proxy_async();
        ptx::barrier_arrive(1 + group, 256);
    }
    /* Takes the bases that the other group's rows have after its block. alpha: factors of earlier
     * sums. */
    __device__ __forceinline__ void learn(RowState (&state)[2], float (&alpha)[2]) const
    {
        ptx::barrier_sync(2 - group, 256);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float2 other = memory.swapped(1 - group, row(r));
            const float down = state[r].base - other.x, l = fabsf(state[r].l);
            alpha[r] = down == 0 ? 1 : ptx::exp2(down);
            state[r].base = other.x;
            state[r].l = copysignf(down == 0 ? l : l * alpha[r], other.y);
        }
    }
    /* Adds up what both groups have seen of their rows. The sum is the first thread's of a quad. */
    __device__ __forceinline__ void end(RowState (&state)[2]) const
    {
        const int at = 2 + item % 2 * 2;
        float2 mine[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            mine[r] = make_float2(quad_sum(fabsf(state[r].l)), state[r].m);
            if (threadIdx.x % 4 == 0) {
                memory.swapped(at + group, row(r)) = mine[r];
            }
        }
        ptx::barrier_sync(5, 256);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float2 other = memory.swapped(at + 1 - group, row(r));
            state[r].l = threadIdx.x % 4 == 0 ? mine[r].x + other.x : 0;
            state[r].m = fmaxf(mine[r].y, other.y);
        }
    }
};

/* P V of block n, which is the other group's, in this group's columns. first: of the item. */
template <class S>
__device__ __forceinline__ void take_swapped(const Swap<S> &swap, Rows<S::DV> &rows, uint32_t n,
                                             bool first)
{
    float alpha[2];
    swap.learn(rows.state, alpha);
    if (!first) {
        rescale_moved(rows.o, alpha);
    }
    ptx::mbarrier_wait(swap.full(n), tile_parity<S>(n));
    wgmma::hold(rows.o);
    wgmma::fence();
    issue_swapped<S>(rows.o, Swap<S>::p(swap.memory, n), swap.columns(n), !first);
    wgmma::wait<0>();
    wgmma::hold(rows.o);
    swap.give_back(n);
}

/* Runs the blocks of an item: block number i of them, from the right, is the group's own if n =
 * number + i is even for the first group, odd for the second. */
template <class S>
__device__ __forceinline__ void run_swapped(const attn_cuda_forward_params &a, Rows<S::DV> &rows,
                                            const Memory<S> &memory, const WarpRows &warp,
                                            const Blocks b, uint32_t number, uint32_t item)
{
    Linear e = {a.scale_log2};
    const Swap<S> swap = {memory, (int)ptx::uniform(threadIdx.x / 128) - 1, item};
    float s[S::BN / 2];
    uint32_t p[S::PARTS][S::BN / 4];
    int i = (int)(number + swap.group) & 1;
    if (i >= b.count && swap.leads()) {
        ptx::mbarrier_arrive(memory.q_empty(0));
    }
#pragma unroll 1
    for (; i < b.count; i += 2) {
        const uint32_t n = number + i;
        const int block = b.last - i;
        if (i > 0) {
            take_swapped(swap, rows, n - 1, i == 1);
        }
        ptx::mbarrier_wait(memory.k_full(n), tile_parity<S>(n));
        wgmma::fence();
        issue_chunks<S, 0, 4>(s, memory.q(), memory.k(n));
        ptx::mbarrier_wait(memory.v_full(n), tile_parity<S>(n));
        wgmma::fence();
        issue_chunks<S, 4, S::WIDE / 64>(s, memory.q(), memory.k(n));
        wgmma::commit();
        wgmma::wait<0>();
        wgmma::hold(s);
        if (i + 2 >= b.count && swap.leads()) {
            ptx::mbarrier_arrive(memory.q_empty(0));
        }
        const bool masked = b.masked(block),
                   looked_at = i == 0 || masked || (b.masked(block + 1) && any_begins(rows.state));
        if (looked_at || !keep_bases<S::DTYPE>(s, e, rows.state, p)) {
            bool few[2] = {false, false};
            float alpha[2];
            if (masked) {
                mask_block(warp, block * S::BN, s, few);
            }
            move_bases<S::DTYPE>(s, e, few, rows.state, alpha);
            if (i > 0) {
                rescale_moved(rows.o, alpha);
            }
            probabilities<S::DTYPE>(s, e, rows.state, p);
        }
        swap.tell(n, p[0], rows.state);
        wgmma::hold(p);
        wgmma::hold(rows.o);
        wgmma::fence();
        issue_pv<S>(rows.o, p, swap.columns(n), i > 0);
        wgmma::wait<0>();
        wgmma::hold(rows.o);
        wgmma::hold(p);
        swap.give_back(n);
    }
    if (i == b.count) {
        take_swapped(swap, rows, number + i - 1, i == 1);
    }
    swap.end(rows.state);
}
