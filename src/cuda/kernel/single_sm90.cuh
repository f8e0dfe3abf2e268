/*
 * single_sm90.cuh: forward_sm90 where all keys are one block (f32): two warpgroups load 64 rows of Q, K and V at once,
 * and the first one goes on: no producer, rings and posts, whose beginnings take longer than such a problem. Products,
 * masks and softmax are those of the tile loop (consume_sm90.cuh), in the same order: so are the bits.
 */
#pragma once
#include "consume_sm90.cuh"

/* Shared memory: Q [64][D] | K [BN][D] | V [BN][D], each in parts | bounds [64]. Operands, first in registers. */
template <class S> struct SingleTiles {
    static constexpr int BOUNDS_AT = S::Q_BYTES + 2 * S::KV_BYTES;
    uint32_t q, k, v;
    Fetched<64, S::D, 256> q_fetched;
    Fetched<S::BN, S::D, 256> k_fetched, v_fetched;

    __device__ __forceinline__ SingleTiles(uint32_t base) : q(base), k(q + S::Q_BYTES), v(k + S::KV_BYTES)
    {
    }
    __device__ __forceinline__ void fetch(const attn_cuda_forward_params &a, const Item &item)
    {
        const attn_problem &p = a.problem;
        const attn_sequence &s = item.sequence;
        const int rows = (int)(s.nq_used - item.first_row), keys = (int)s.nk, kv_head = item.head / (int)p.group;
        q_fetched.fetch(p.q, attn_at(&p.q, s.tensor, s.q_first + item.first_row, item.head, 0), rows,
                        a.aligned & ATTN_CUDA_ALIGNED_Q);
        k_fetched.fetch(p.k, attn_at(&p.k, s.tensor, s.k_first, kv_head, 0), keys, a.aligned & ATTN_CUDA_ALIGNED_K);
        v_fetched.fetch(p.v, attn_at(&p.v, s.tensor, s.k_first, kv_head, 0), keys, a.aligned & ATTN_CUDA_ALIGNED_V);
    }
    __device__ __forceinline__ void put_qk() const
    {
        q_fetched.template put<S::BM>(q);
        k_fetched.template put<S::BN>(k);
        ptx::fence_proxy_async();
    }
    __device__ __forceinline__ void put_v() const
    {
        v_fetched.template put<S::BN>(v);
        ptx::fence_proxy_async();
    }
};

/* The first warpgroup's part: S = Q K^T, softmax, O = P V. */
template <class S>
__device__ __forceinline__ void single_block(float c, const SingleTiles<S> &tiles, const WarpRows &warp, bool masked,
                                             Rows<S::D> &rows)
{
    float s[S::BN / 2], alpha[2];
    uint32_t p[S::PARTS][S::BN / 4];
    bool few[2] = {false, false};
    rows.state[0] = rows.state[1] = {NO_BASE, -0.0f, -INFINITY};
    wgmma::fence();
    issue_qk<S, S::BN>(s, tiles.q, HeldQ<S>(), tiles.k);
    tiles.put_v();
    wgmma::wait<0>();
    wgmma::hold(s);
    if (masked) {
        mask_block(warp, 0, s, few);
    }
    move_bases(s, c, few, rows.state, alpha);
    probabilities<S::BF16>(s, c, rows.state, p);
    ptx::barrier_sync(1, 256); /* V is there */
    Sum<S> sum(rows);
    wgmma::hold(p);
    wgmma::fence();
    issue_pv<S>(sum.o, p, tiles.v, 0);
    wgmma::wait<0>();
    wgmma::hold(sum.o);
    sum.add(rows);
}

template <class S> __device__ __forceinline__ void single(const attn_cuda_forward_params &a)
{
    extern __shared__ unsigned char shared[];
    const uint32_t skip = -ptx::shared_address(shared) & 1023;
    const int first = threadIdx.x / 32 * 16;
    const WarpRows warp = {first, (int2 *)(shared + skip + SingleTiles<S>::BOUNDS_AT) + first};
    const bool computes = threadIdx.x < 128;
    Item item;
    any_item(a, blockIdx.x, item);
    if (item.empty) {
        return;
    }
    SingleTiles<S> tiles(ptx::shared_address(shared) + skip);
    tiles.fetch(a, item);
    const Blocks b = key_blocks(a.problem, item, 0, S::BM, S::BN);
    if (b.count == 0) {
        if (computes) {
            finish_empty<S::DTYPE>(a.problem, item, warp);
        }
        return;
    }
    if (b.any_masked() && computes) {
        note_bounds(a.problem, item, warp);
    }
    tiles.put_qk();
    __syncthreads();
    if (!computes) {
        tiles.put_v();
        ptx::barrier_arrive(1, 256);
        return;
    }
    Rows<S::D> rows;
    single_block<S>(a.scale_log2, tiles, warp, b.any_masked(), rows);
    finish_rows<S::DTYPE, S::D, false, true>(a, item, b.any_masked(), warp, rows, DirectStore<S::DTYPE>{a.problem});
}
