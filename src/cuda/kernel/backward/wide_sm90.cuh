/*
 * wide_sm90.cuh: dK and dV of 64 keys of a KV head on sm_90a, and what the keys add to dQ, for
 * d > 128: five products as in ordered_sm90.cuh, whose registers end at sums of 64 x 128. So both
 * warpgroups have the same keys: each computes P and dS of half of a tile's rows, which it gives to
 * the other in shared memory, and has half of the columns of dK, dV and dQ:
 *
 *     for each head of the share, each tile of rows that see the keys:
 *         issue dQ = dS K in two halves, dV += P^T dO, dK += dS^T Q
 *         add one half of dQ to the tile's sums | issue S^T = K Q^T, dP^T = V dO^T of the next tile
 *         add the other half | P and dS of the next tile, to shared memory
 *
 * Warps add to dQ from registers, in turns (turns_sm90.cuh): through shared memory, which the
 * products keep busy, its 64 KB would pass twice, and there is no room.
 */
#pragma once
#include "cuda/kernel/backward/ordered_sm90.cuh"

/* With room for P and dS of two tiles. */
template <int DTYPE, int D, int STEP, int STAGES>
using WideShape = GradShape<DTYPE, D, STEP, STAGES, 2 * 2 * 64 * STEP * 2, GRAD_SCALED, false, 64>;

/* A warpgroup. Rows: those of a tile whose scores it computes. */
template <class S> struct WideGroup {
    static constexpr int ROWS = S::STEP / 2, SCORE_BYTES = S::FIXED * S::STEP * 2;
    const attn_cuda_backward_params &a;
    const GradMemory<S> &memory;
    const OrderedItem &o;
    const int *row_of;
    KeySums<S> sums;
    float s[ROWS / 2], dp[ROWS / 2]; /* of the tile to come */
    float x[32], y[32];              /* dQ of 64 rows: two times 64 columns */
    /* The thread's part of the sums of a tile of dQ, and which one. Additions read their address
     * late, so its registers are to have no other use. */
    float *sums_at;
    int64_t tile_at;
    int group = ptx::uniform(ptx::thread() / 128) - 1;
    float2 sizes = {0, 0}; /* of |dS^T| of this thread's two keys (range_sm90.cuh) */

    /* P^T and dS^T of a tile: 64 keys, rows along a row of shared memory. */
    __device__ __forceinline__ uint32_t scores(uint32_t n, int which) const
    {
        return memory.scores() + (n % 2 * 2 + which) * SCORE_BYTES;
    }

    /* S^T = K Q^T, dP^T = V dO^T. */
    __device__ __forceinline__ void issue_products_of(uint32_t n)
    {
        memory.stages().await_full(n);
        wgmma::fence();
        const uint32_t rows = group * ROWS * 128;
        issue_scores<S, ROWS, 0, S::STEP>(s, memory.fixed(0), memory.streamed(n, 0) + rows);
        issue_scores<S, ROWS, 0, S::STEP>(dp, memory.fixed(1), memory.streamed(n, 1) + rows);
    }

    /* Adds X Y to a sum: X^T, P or dS of tile n; Y, the group's columns of a tile of rows. */
    __device__ __forceinline__ void issue_sum_of(float (&sum)[S::COLUMNS / 2], uint32_t x,
                                                 uint32_t y)
    {
        const uint64_t left = wgmma::descriptor(operand_at<S>(x), 0),
                       right = wgmma::descriptor(
                           operand_at<S>(y + group * (S::COLUMNS / 64) * S::STEP * 128),
                           S::STEP * 128);
#pragma unroll
        for (int step = 0; step < S::STEP / 16; step++) {
            wgmma::Product<S::BF16, S::COLUMNS>::template ss<0, 1>(sum, left + step * 2,
                                                                   right + step * 128, 1);
        }
        wgmma::commit();
    }

    /* dQ = dS K of 64 of the group's columns. */
    __device__ __forceinline__ void issue_queries(float (&dq)[32], uint32_t n, int half)
    {
        const uint64_t left = wgmma::descriptor(operand_at<S>(scores(n, 1)), 0),
                       right = wgmma::descriptor(
                           operand_at<S>(memory.fixed(0) + (2 * group + half) * S::FIXED * 128), 0);
#pragma unroll
        for (int step = 0; step < S::FIXED / 16; step++) {
            wgmma::Product<S::BF16, 64>::template ss<1>(dq, left + step * 128, right + step * 128,
                                                        step > 0);
        }
        wgmma::commit();
    }

    /* Stores P^T or dS^T of 64 keys and the group's rows, packed. */
    __device__ __forceinline__ void stage(uint32_t to, const uint32_t (&x)[ROWS / 4]) const
    {
        const int thread = ptx::thread(), lane = thread % 32,
                  key = thread / 32 % 4 * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
        for (int j = 0; j < ROWS / 8; j += 2) {
            const int piece = group * (ROWS / 8) + j + lane / 16;
            ptx::store_matrices(to + key * 128 + ((piece ^ lane % 8) * 16), x[2 * j], x[2 * j + 1],
                                x[2 * j + 2], x[2 * j + 3]);
        }
    }

    /* P and dS of tile n, whose products are done. */
    __device__ __forceinline__ void score(uint32_t n)
    {
        const int lane = ptx::thread() % 32, row = row_of[n % S::STAGES] + ROWS * group,
                  first = (int)o.item.first, key = first + ptx::thread() / 32 % 4 * 16 + lane / 4;
        const uint32_t lse = memory.statistics(n) + 4 * ROWS * group + lane % 4 * 8;
        const attn_band band = o.band;
        const bool masked =
            row + ROWS - 1 + band.from > first || min(row + band.to, band.keys) < first + S::FIXED;
        uint32_t p[ROWS / 4], ds[ROWS / 4];
        wgmma::hold(s);
        wgmma::hold(dp);
        probabilities<S::BF16, 0, ROWS>(s, a.scale_log2, lse, band, masked, a.hides_keys, key,
                                        row + lane % 4 * 2);
        pack_probabilities<S::BF16, 0, ROWS>(s, p);
        stage(scores(n, 0), p);
        pack_scores<S::BF16, 0, ROWS>(s, dp, lse + 4 * S::STEP, o.unit, ds);
        stage(scores(n, 1), ds);
        if constexpr (!S::BF16) {
            add_terms(sizes, packed_sizes(ds, 0), packed_sizes(ds, 1));
        }
        ptx::fence_proxy_async();
    }

    /* Goes on to a tile's sums: float4 number i of lane l of warp w of the two groups is number
     * (16 w + i) 32 + l of them. Returns whether nothing is there yet. */
    __device__ __forceinline__ bool turn_to(int64_t place)
    {
        const int64_t next = place < 0 ? ~place : place;
        sums_at += (next - tile_at) * (S::STEP * S::D);
        tile_at = next;
        return place < 0;
    }

    /* Adds a half of the warp's part of dQ, or stores it, if it is the first there. */
    __device__ __forceinline__ void add_queries(const float (&dq)[32], int half, bool first) const
    {
        float *const to = sums_at + half * 8 * 128;
        if (first) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                *(float4 *)(to + i * 128) =
                    make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                ptx::add_floats_4(to + i * 128, dq + 4 * i);
            }
        }
    }

    /* Says for the warp that its lanes have come here. */
    __device__ __forceinline__ void arrive(uint32_t barrier) const
    {
        __syncwarp();
        if (ptx::thread() % 32 == 0) {
            ptx::mbarrier_arrive(barrier);
        }
    }

    /* n: the tile's number. MORE: it is not the item's last one. */
    template <bool MORE> __device__ __forceinline__ void tile(uint32_t n)
    {
        ptx::barrier_sync(5, 256); /* P and dS of both are there, and products of n - 1 done */
        wgmma::fence();
        issue_queries(x, n, 0);
        issue_queries(y, n, 1);
        issue_sum_of(sums.dv, scores(n, 0), memory.streamed(n, 1));
        issue_sum_of(sums.dk, scores(n, 1), memory.streamed(n, 0));
        ptx::mbarrier_wait(memory.turn(n), n / 2 & 1);
        const bool first = turn_to(sum_place(n));
        wgmma::wait<3>(); /* half of dQ */
        wgmma::hold(x);
        add_queries(x, 0, first);
        wgmma::wait<0>(); /* the other half, dV, dK */
        wgmma::hold(y);
        wgmma::hold(sums.dv);
        wgmma::hold(sums.dk);
        arrive(memory.stages().empty(n));
        if constexpr (MORE) {
            issue_products_of(n + 1);
        }
        add_queries(y, 1, first);
        arrive(memory.done(n));
        if constexpr (MORE) {
            wgmma::wait<0>();
            score(n + 1);
        }
    }

    __device__ __forceinline__ void run()
    {
        sums.clear();
        if (o.all == 0) {
            return;
        }
        if (a.hides_keys) {
            clear_hidden<S>(a, memory, o.item);
        }
        uint32_t n = o.from;
        sums_at = a.sums + (ptx::thread() - 128) / 32 * 16 * 128 + ptx::thread() % 32 * 4;
        tile_at = 0;
        issue_products_of(n);
        wgmma::wait<0>();
        score(n);
        for (; n + 1 < o.end(); n++) {
            tile<true>(n);
        }
        tile<false>(n);
    }

    /* The thread's first key. */
    __device__ __forceinline__ int64_t first_key() const
    {
        return o.item.first + ptx::thread() / 32 % 4 * 16 + ptx::thread() % 32 / 4;
    }

    /* Whether a key of the warp has dS that are too small (range_sm90.cuh): the sizes of both
     * groups' rows count. */
    __device__ __forceinline__ bool has_faint_keys(float2 own)
    {
        const float2 mine = of_four_lanes(own);
        const int slot = ptx::thread() / 32 % 4 * 8 + ptx::thread() % 32 / 4, mine_at = 32 * group;
        ptx::barrier_sync(5, 256); /* products have read what lies there */
        if (ptx::thread() % 4 == 0) {
            ptx::store_shared_8(memory.scores() + (mine_at + slot) * 8, __float_as_uint(mine.x),
                                __float_as_uint(mine.y));
        }
        ptx::barrier_sync(5, 256);
        const float2 x = ptx::load_shared_8(memory.scores() + slot * 8),
                     y = ptx::load_shared_8(memory.scores() + (32 + slot) * 8);
        const int64_t key = first_key();
        return is_faint_key(a, o.item, o.band, key, x.x + y.x) ||
               is_faint_key(a, o.item, o.band, key + 8, x.y + y.y);
    }

    __device__ __forceinline__ void store()
    {
        float terms[4] = {sizes.x, sizes.y, 0, 0};
        if (o.shares > 1 && !join_shares<S>(a, o, sums, terms)) {
            return;
        }
        if (a.hides_keys) {
            drop_hidden(a, o.item, first_key(), sums.dk, sums.dv, terms);
        }
        bool bad = false;
        if constexpr (!S::BF16) {
            bad = has_faint_keys({terms[0], terms[1]});
        }
        sums.lower(o.unit, 1);
        const attn_sequence &sequence = o.item.sequence;
        const int first = (int)o.item.first, left = (int)sequence.k_rows - first,
                  batch = (int)sequence.tensor, head = (int)o.item.head,
                  column = group * S::COLUMNS;
        const int64_t key = sequence.k_first + first;
        const attn_gradients &grads = a.grads;
        bad |= store_sums(grads.dk, sums.dk, (float)grads.problem.scale, batch, key, head, left,
                          column);
        bad |= store_sums(grads.dv, sums.dv, 1, batch, key, head, left, column);
        bad = ptx::barrier_any(5, 256, bad);
        if (ptx::thread() == 128) {
            note_block(a, grad_note(grads.problem, a.items, o.item, first), bad);
        }
    }
};

template <class S> __device__ __forceinline__ void wide_sm90(const attn_cuda_backward_params &a)
{
    run_ordered<S, WideGroup<S>, OrderedLoader<S>>(a);
}
