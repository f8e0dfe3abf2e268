/*
 * wide_sm90.cuh: the tile loop of forward_sm90 for head dimensions beyond 256 (WideShape): two
 * warpgroups compute the same scores of 64 rows, and each multiplies them with its half of V's
 * columns. P V of a block goes before Q K^T of the next one, so that its tile makes room while the
 * tensor cores are busy.
 */
#pragma once
#include "cuda/kernel/forward/products_sm90.cuh"

/* Runs the blocks of an item. */
template <class S>
__device__ __forceinline__ void run_shared(const attn_cuda_forward_params &a, Rows<S::DV> &rows,
                                           const Memory<S> &memory, const WarpRows &warp,
                                           Steps<S> &steps, const Blocks b, uint32_t number)
{
    const Linear e = {a.scale_log2};
    const bool leader = threadIdx.x % 128 == 0;
    float s[S::BN / 2];
    uint32_t p[S::PARTS][S::BN / 4];
    Sum<S> sum(rows);
    HeldQ<S> held;
    const uint32_t q = operand_place(ptx::uniform(memory.q()));
    Drops<S> drops; /* nothing: there is no dropout here */
    first_block<S, S::BN>(a, rows, memory, held, warp, steps, b, b.last, q, number, false, p,
                          drops);
#pragma unroll 1
    for (int i = 1; i < b.count; i++) {
        const uint32_t n = number + i;
        const int block = b.last - i;
        if (!S::VIEW) {
            ptx::mbarrier_wait(memory.v_full(n - 1), tile_parity<S>(n - 1));
        }
        wgmma::hold(p);
        wgmma::fence();
        issue_pv<S>(sum.o, p, memory.v(n - 1) + warp.column() * (S::BN * 2), i > 1);
        ptx::mbarrier_wait(memory.k_full(n), tile_parity<S>(n));
        wgmma::fence();
        issue_qk<S, S::BN>(s, q, held, operand_place(ptx::uniform(memory.k(n))));
        wgmma::wait<1>();
        wgmma::hold(sum.o);
        wgmma::hold(p);
        if (leader) {
            ptx::mbarrier_arrive(S::VIEW ? memory.k_empty(n - 1) : memory.v_empty(n - 1));
        }
        const bool masked = b.masked(block),
                   looked_at = masked || (b.masked(block + 1) && any_begins(rows.state));
        wgmma::wait<0>();
        wgmma::hold(s);
        if (!S::VIEW && leader) {
            ptx::mbarrier_arrive(memory.k_empty(n));
        }
        if (looked_at || !keep_bases<S::DTYPE>(s, e, rows.state, p)) {
            bool few[2] = {false, false};
            if (masked) {
                mask_block(warp, block * S::BN, s, few);
            }
            update_bases<S::DTYPE>(e, s, few, rows);
            probabilities<S::DTYPE>(s, e, rows.state, p);
        }
    }
    const uint32_t n = number + b.count - 1;
    if (leader) {
        ptx::mbarrier_arrive(memory.q_empty(0));
    }
    if (!S::VIEW) {
        ptx::mbarrier_wait(memory.v_full(n), tile_parity<S>(n));
    }
    wgmma::hold(p);
    wgmma::fence();
    issue_pv<S>(sum.o, p, memory.v(n) + warp.column() * (S::BN * 2), b.count > 1);
    wgmma::wait<0>();
    wgmma::hold(sum.o);
    if (leader) {
        ptx::mbarrier_arrive(S::VIEW ? memory.k_empty(n) : memory.v_empty(n));
    }
}
