/*
 * products_sm90.cuh: what a consumer warpgroup of forward_sm90 does with a tile: Q K^T, P V, and
 * all of an item's first block.
 */
#pragma once
#include "cuda/kernel/forward/dropped_sm90.cuh"
#include "cuda/kernel/forward/steps_sm90.cuh"
#include "cuda/kernel/forward/turns_sm90.cuh"
#include "cuda/kernel/forward/walk_sm90.cuh"
#include "cuda/kernel/mma/mma.cuh"
#include "cuda/kernel/mma/wgmma.cuh"

/* Registers of Q of an f32 warp: the A operands of some parts, for each k-step. q: the group's
 * rows. */
template <class S> struct HeldQ {
    uint32_t a[S::Q_HELD > 0 ? S::Q_HELD : 1][S::D / 16][4];

    __device__ __forceinline__ void load(uint32_t q)
    {
        const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
        for (int part = 0; part < S::Q_HELD; part++) {
#pragma unroll
            for (int step = 0; step < S::D / 16; step++) {
                mma::load_4<false>(
                    a[part][step],
                    mma::piece_address<S::BM>(q + part * S::Q_PART, row, 2 * step + lane / 16));
            }
        }
    }
};

/* Where eights of a tile's rows and chunks lie, and a step along them: of pages by the host. */
template <class S, bool = S::EIGHTS> struct Lie {
    attn_cuda_lie lie;

    __device__ __forceinline__ Lie(const attn_cuda_lie *) : lie{0, 64, S::BN * 8}
    {
    }
    __device__ __forceinline__ uint64_t at(uint64_t operand, uint32_t step) const
    {
        return operand + step;
    }
};

template <class S> struct Lie<S, true> {
    const attn_cuda_lie &lie;

    __device__ __forceinline__ Lie(const attn_cuda_lie *lie_) : lie(*lie_)
    {
    }
    __device__ __forceinline__ uint64_t at(uint64_t operand, uint32_t step) const
    {
        return wgmma::at(operand, step);
    }
};

/* The word of an operand's descriptor that says where it lies (wgmma::descriptor), and the
 * descriptor. A loop that keeps the word takes few instructions for a step, none of 64 bits. */
__device__ __forceinline__ uint32_t operand_place(uint32_t address)
{
    return (uint32_t)wgmma::descriptor(address, 0);
}

__device__ __forceinline__ uint64_t placed_operand(uint32_t place, uint32_t eight = 1024)
{
    return wgmma::at(wgmma::descriptor(0, 0, eight), place);
}

/* Products with the first N keys of a block. q, k: places of operands. */
template <class S, int N>
__device__ __forceinline__ void issue_qk(float (&s)[N / 2], uint32_t q, const HeldQ<S> &held,
                                         uint32_t k, const attn_cuda_lie *lie_ = NULL)
{
    const Lie<S> lie(lie_);
#pragma unroll
    for (int i = mma::FIRST_PRODUCT<S::PARTS>; i < mma::PRODUCTS; i++) {
        const uint32_t a = q + mma::left_part(i) * (S::Q_PART / 16),
                       b = k + mma::right_part(i) * (S::K_PART / 16);
#pragma unroll
        for (int step = 0; step < S::D / 16; step++) {
            int chunk = step / 4, within = step % 4 * 2;
            const uint64_t keys =
                placed_operand(b + chunk * lie.lie.chunk + within, lie.lie.eight * 16);
            const int accumulate = i > mma::FIRST_PRODUCT<S::PARTS> || step > 0;
            if (mma::left_part(i) < S::Q_HELD) {
                wgmma::Product<S::BF16, N>::template rs<0>(s, held.a[mma::left_part(i)][step], keys,
                                                           accumulate);
            } else {
                wgmma::Product<S::BF16, N>::ss(s, placed_operand(a + chunk * S::BM * 8 + within),
                                               keys, accumulate);
            }
        }
    }
    wgmma::commit();
}

/* P V of a block. Its first AWAITED steps are a group by themselves. */
template <class S>
__device__ __forceinline__ void issue_pv(float (&o)[S::DV / 2],
                                         const uint32_t (&p)[S::PARTS][S::BN / 4], uint32_t v,
                                         int accumulate, const attn_cuda_lie *lie_ = NULL)
{
    v = ptx::uniform(v);
    const Lie<S> lie(lie_);
#pragma unroll
    for (int i = mma::FIRST_PRODUCT<S::PARTS>; i < mma::PRODUCTS; i++) {
        const uint64_t b = wgmma::descriptor(v + mma::right_part(i) * S::V_PART, lie.lie.chunk * 16,
                                             lie.lie.eight * 16);
#pragma unroll
        for (int step = 0; step < S::BN / 16; step++) {
            const bool first = i == mma::FIRST_PRODUCT<S::PARTS> && step == 0;
            wgmma::Product<S::BF16, S::DV>::template rs<1>(o, p[mma::left_part(i)] + 4 * step,
                                                           lie.at(b, step * 2 * lie.lie.eight),
                                                           first ? accumulate : 1);
            if (step + 1 == S::AWAITED) {
                wgmma::commit();
            }
        }
    }
    wgmma::commit();
}

/* The destination of P V of a block: O itself, or for f32 a sum of its own, which is added to O
 * then. */
template <class S, int PARTS = S::PARTS> struct Sum {
    float o[S::DV / 2];

    __device__ __forceinline__ Sum(Rows<S::DV> &rows)
    {
#pragma unroll
        for (int i = 0; i < S::DV / 2; i++) {
            rows.o[i] = 0;
        }
    }
    __device__ __forceinline__ void add(Rows<S::DV> &rows)
    {
#pragma unroll
        for (int i = 0; i < S::DV / 2; i++) {
            rows.o[i] += o[i];
        }
    }
};

template <class S> struct Sum<S, 1> {
    float (&o)[S::DV / 2];

    __device__ __forceinline__ Sum(Rows<S::DV> &rows) : o(rows.o)
    {
    }
    __device__ __forceinline__ void add(Rows<S::DV> &)
    {
    }
};

/* The number of the group's 64 rows in the item. */
template <class S> __device__ __forceinline__ int row_group()
{
    return S::SHARED ? 0 : threadIdx.x / 128 - 1;
}

/* The piece of Q with the group's rows. */
template <class S> __device__ __forceinline__ int q_piece()
{
    return S::Q_PIECES > 1 ? ptx::opaque(threadIdx.x) / 128 - 1 : 0;
}

/* Runs block number `block`, the first one, of which the group's rows see N keys at most. q: the
 * place of the group's rows of Q. */
template <class S, int N>
__device__ __forceinline__ void
first_block(const attn_cuda_forward_params &a, Rows<S::DV> &rows, const Memory<S> &memory,
            const HeldQ<S> &held, const WarpRows &warp, Steps<S> &steps, const Blocks &b, int block,
            uint32_t q, uint32_t n, bool turn, uint32_t (&p)[S::PARTS][S::BN / 4], Drops<S> &drops)
{
    const int key = block * S::BN;
    float s[N / 2], alpha[2];
    steps.begin_copies(a, key);
    steps.fetch_copies(a, key, b.count > 1);
    ptx::mbarrier_wait(memory.k_full(n), tile_parity<S>(n));
    if (turn) {
        begin_turn<S>();
    }
    wgmma::fence();
    issue_qk<S, N>(s, q, held, operand_place(memory.k(n)), &a.pages.k);
    if (turn) {
        end_turn<S>();
    }
    steps.fetch_mask(a, key);
    drops.begin_block(a, key);
    wgmma::wait<0>();
    wgmma::hold(s);
    if (!S::VIEW && threadIdx.x % 128 == 0) {
        ptx::mbarrier_arrive(memory.k_empty(n));
    }
    bool few[2] = {false, false};
    if constexpr (S::STEPS) {
        steps.apply(a, warp, key, b.masked(block), s);
        steps.hide(a, s);
        few[0] = steps.template few<N / 2>(0), few[1] = steps.template few<N / 2>(1);
    }
    auto e = steps.exponents(a, key);
    if constexpr (!S::STEPS) {
        steps.prepare(e, key, s);
        if (b.masked(block)) {
            mask_block(warp, key, s, few);
        }
    }
    move_bases<S::DTYPE>(s, e, few, rows.state, alpha);
    probabilities<S::DTYPE>(s, e, rows.state, p);
    steps.learn(e);
    drops.take(a, key, p);
}
