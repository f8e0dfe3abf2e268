/*
 * wide_sm90.cuh: dK and dV of 128 keys of a KV head on sm_90a, and what the keys add to dQ, for
 * d > 128: five products as in ordered_sm90.cuh, whose registers end at sums of 64 x 128. So a pair
 * of CTAs (pair_sm90.cuh) has the keys, 64 each, and goes through the same tiles of rows. In a CTA
 * both warpgroups have the same keys: each computes P and dS of half of a tile's rows, which it
 * gives to the other in shared memory, and has half of the columns of dK and dV. The CTAs give each
 * other their dS, and each adds half of the columns of dQ, of all 128 keys:
 *
 *     for each head of the share, each tile n of rows that see the keys, whose dS is there:
 *         issue S^T = K Q^T of n + 1 | the second half of dQ of n - 1 to shared memory
 *         issue dK += dS^T Q, dQ = dS K of own keys | P of n + 1
 *         issue dQ += dS K of the other's keys, half of dP^T = V dO^T of n + 1 | the first half of
 *             dQ to shared memory
 *         issue the rest of dP^T, dV += P^T dO of n + 1 | dS of n + 1, which the loader copies to
 *             the other CTA
 *
 * P and dS go to shared memory, where dS has two stages, since the other CTA reads it late. dO is
 * there for two products that follow each other, so that one stage is enough. The TMA adds dQ to
 * its sums, in turns. There is room for half of it, so the other half waits in registers.
 *
 * With score steps and dropout P is as steps_sm90.cuh has it, where P^T times the derivative takes
 * the place of S^T. Masks and biases are read where they lie.
 */
#pragma once
#include "cuda/kernel/backward/pair_ends_sm90.cuh"
#include "cuda/kernel/backward/pair_sm90.cuh"
#include "cuda/kernel/backward/steps_sm90.cuh"

template <int DTYPE, int D, int STEP, int STAGES, GradSteps STEPS = GRAD_SCALED>
using WideShape = GradShape<DTYPE, D, STEP, STAGES, ATTN_GRAD_WIDE_ROOM(D, STEP), STEPS, false, 64>;

/* A warpgroup. Rows: those of a tile whose scores it computes. */
template <class S> struct WideGroup {
    static constexpr int ROWS = S::STEP / 2;
    static constexpr bool HIDES = !S::STEPPED; /* keys of an item */
    const attn_cuda_backward_params &a;
    const GradMemory<S> &memory;
    const OrderedItem &o;
    const int *row_of;
    KeySums<S> sums;
    float s[ROWS / 2], dp[ROWS / 2]; /* of the tile to come */
    float dq[32];                    /* of 64 rows and columns */
    float kept[16];                  /* the second half of that, until there is room */
    int group = ptx::uniform(ptx::thread() / 128) - 1;
    int lane = ptx::thread() % 32;
    uint32_t staged_at = first_place(); /* in P or dS (stage) */
    /* sums of |dS^T| and, with steps, of P^T of this thread's two keys (range_sm90.cuh) */
    float2 sizes = {0, 0}, weights = {0, 0};
    uint32_t drop[1] = {}; /* of the tile to come (steps_sm90.cuh) */

    /* Where the lane stores what stage() gives it. */
    __device__ __forceinline__ uint32_t first_place() const
    {
        const int key = ptx::thread() / 32 % 4 * 16 + lane / 8 % 2 * 8 + lane % 8;
        return key * 128 + ((group * (ROWS / 8) + lane / 16) ^ lane % 8) * 16;
    }

    /* Says that P of the group's rows is there, and waits for that of the other's. */
    __device__ __forceinline__ void give_weights() const
    {
        ptx::barrier_arrive(4 - group, 256);
    }
    __device__ __forceinline__ void await_weights() const
    {
        ptx::barrier_sync(3 + group, 256);
    }

    /* Says for the warp that its lanes have come here. */
    __device__ __forceinline__ void arrive(uint32_t barrier) const
    {
        __syncwarp();
        if (lane == 0) {
            ptx::mbarrier_arrive(barrier);
        }
    }

    /* The same to both CTAs. */
    __device__ __forceinline__ void arrive_at_both(uint32_t barrier) const
    {
        __syncwarp();
        if (lane < 2) {
            cluster::mbarrier_arrive(barrier, lane);
        }
    }

    /* S^T = K Q^T, or dP^T = V dO^T: steps FROM to TO - 1. */
    template <int FROM = 0, int TO = S::D / 16>
    __device__ __forceinline__ void issue_product(float (&x)[ROWS / 2], uint32_t n, int which) const
    {
        issue_scores<S, ROWS, 0, S::STEP, FROM, TO>(x, memory.fixed(which),
                                                    memory.streamed(n, which) + group * ROWS * 128);
    }

    /* Adds X Y to a sum: X^T, P or dS of a tile; Y, the group's columns of its rows. */
    __device__ __forceinline__ void issue_sum_of(float (&sum)[S::COLUMNS / 2], uint32_t x,
                                                 uint32_t y) const
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

    /* Adds dS K of 64 keys to dQ, or begins with it: chunks of 64 columns of K. */
    template <int ADD> __device__ __forceinline__ void issue_queries(uint32_t ds, uint32_t k)
    {
        const uint64_t left = wgmma::descriptor(operand_at<S>(ds), 0),
                       right = wgmma::descriptor(operand_at<S>(k), 0);
#pragma unroll
        for (int step = 0; step < S::FIXED / 16; step++) {
            wgmma::Product<S::BF16, 64>::template ss<1>(dq, left + step * 128, right + step * 128,
                                                        ADD || step > 0);
        }
        wgmma::commit();
    }

    /* dQ = dS K of tile n, of the CTA's keys and then of the other's: chunk 2 g + c of group g in
     * CTA c. */
    __device__ __forceinline__ void issue_own_queries(uint32_t n)
    {
        issue_queries<0>(memory.scores(n),
                         memory.fixed(0) + (2 * group + cluster::rank()) * S::FIXED * 128);
    }
    __device__ __forceinline__ void issue_other_queries(uint32_t n)
    {
        issue_queries<1>(memory.other_scores(), memory.other_keys() + group * S::FIXED * 128);
    }

    /* Stores P^T or dS^T of 64 keys and the group's rows, packed. */
    __device__ __forceinline__ void stage(uint32_t to, const uint32_t (&x)[ROWS / 4]) const
    {
        static_assert(ROWS == 32, "two pieces, whose places differ in one bit");
        ptx::store_matrices(to + staged_at, x[0], x[1], x[2], x[3]);
        ptx::store_matrices(to + (staged_at ^ 32), x[4], x[5], x[6], x[7]);
        ptx::fence_proxy_async();
    }

    /* LSE or delta of the rows of tile n that the thread has. With steps they are read where they
     * are taken, since registers are few. */
    __device__ __forceinline__ uint32_t statistics(uint32_t n, int which) const
    {
        return memory.statistics(n) + 4 * (which * S::STEP + ROWS * group) + lane % 4 * 8;
    }
    __device__ __forceinline__ void load_rows(float2 (&x)[ROWS / 8], uint32_t n, int which) const
    {
#pragma unroll
        for (int j = 0; j < ROWS / 8 && !S::STEPPED; j++) {
            x[j] = ptx::load_shared_8(statistics(n, which) + 32 * j);
        }
    }

    /* What the thread has of tile n, for its steps. */
    __device__ __forceinline__ StepRows<ROWS> steps_of(uint32_t n) const
    {
        const int row = row_of[n % S::STAGES] + ROWS * group;
        return {a,
                o.item.sequence,
                row_of[S::STAGES + n % S::STAGES],
                (int)pair_key(o),
                row + lane % 4 * 2,
                0,
                o.band,
                is_masked(row)};
    }
    /* Finds what dropout drops of tile n, and asks for its mask and bias. */
    __device__ __forceinline__ void prepare_steps(uint32_t n)
    {
        if constexpr (S::STEPPED) {
            steps_of(n).find_dropped(drop);
            steps_of(n).template fetch<ROWS, READ_GATHERED>();
        }
    }
    /* Makes P of the products, packed, and P times the derivatives (steps_sm90.cuh). */
    __device__ __forceinline__ void take_steps(uint32_t n, uint32_t (&p)[1][ROWS / 4])
    {
        StepRows<ROWS> steps = steps_of(n);
        steps.drop[0] = drop[0];
        steps.template run<S::BF16, READ_GATHERED>(s, p, statistics(n, 0),
                                                   [&]() -> float2 & { return weights; });
    }

    /* Makes P of S, and packs it. */
    __device__ __forceinline__ void raise(int row, bool masked, const float2 (&lse)[ROWS / 8],
                                          uint32_t (&p)[ROWS / 4])
    {
#pragma unroll
        for (int i = 0; i < ROWS / 2; i++) {
            s[i] = fmaf(s[i], a.scale_log2, -(i % 2 ? lse[i / 4].y : lse[i / 4].x));
        }
        if (!S::BF16 && a.hides_keys) {
            limit_exponents<S::BF16, 0, ROWS>(s);
        }
        if (masked) {
            const attn_band band = o.band;
            hide_by_band<0, ROWS>(s, band, (int)pair_key(o), row + lane % 4 * 2);
        }
        raise_exponents<0, ROWS>(s, o.band, false, 0, 0);
        pack_probabilities<S::BF16, 0, ROWS>(s, p);
    }

    /* Gives P of tile n, whose S is there. row: the first one of the group. */
    __device__ __forceinline__ void weigh(uint32_t n, int row, bool masked,
                                          const float2 (&lse)[ROWS / 8])
    {
        uint32_t p[1][ROWS / 4];
        wgmma::hold(s);
        if constexpr (S::STEPPED) {
            take_steps(n, p);
        } else {
            raise(row, masked, lse, p[0]);
        }
        if (n > 0) { /* dV of the other group has read what lies there (end_values) */
            ptx::barrier_sync(6 + group, 256);
        }
        stage(memory.weights(), p[0]);
        give_weights();
    }

    /* Whether the band hides some of the group's rows of a tile. */
    __device__ __forceinline__ bool is_masked(int row) const
    {
        const int first = (int)o.item.first;
        return row + ROWS - 1 + o.band.from > first ||
               min(row + o.band.to, o.band.keys) < first + S::FIXED;
    }

    /* dS of tile n, whose dV is issued behind dP. */
    __device__ __forceinline__ void differentiate(uint32_t n, const float2 (&delta)[ROWS / 8])
    {
        wgmma::wait<1>(); /* dP */
        wgmma::hold(dp);
        uint32_t ds[ROWS / 4];
        if constexpr (S::STEPPED) {
            pack_step_scores<S::BF16, 0, ROWS, false>(s, dp, a.kept * o.unit, statistics(n, 1), ds);
        }
#pragma unroll
        for (int i = 0; i < ROWS / 4 && !S::STEPPED; i++) {
            const float2 base = delta[i / 2];
            ds[i] = ptx::pack_half<S::BF16>(
                score_gradient<S::BF16>(s[2 * i], dp[2 * i], base.x, o.unit),
                score_gradient<S::BF16>(s[2 * i + 1], dp[2 * i + 1], base.y, o.unit));
        }
        if constexpr (!S::BF16) {
            add_terms(sizes, packed_sizes(ds, 0), packed_sizes(ds, 1));
        }
        if (n > 1) {
            ptx::mbarrier_wait(memory.taken(n), (n / 2 & 1) ^ 1);
        }
        stage(memory.scores(n), ds);
        arrive(memory.scored(n));
    }

    /* Stores half of dQ of tile n in shared memory, once the half before has left: columns 32 HALF
     * to 32 HALF + 31 of the group's. */
    template <int HALF> __device__ __forceinline__ void stage_queries(uint32_t n)
    {
        const uint32_t to = memory.half_sums() + (ptx::thread() - 128) / 32 * 2048 + lane * 16;
        ptx::mbarrier_wait(memory.room(!HALF), HALF ? n & 1 : (n & 1) ^ 1);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *x = (HALF ? kept : dq) + 4 * i;
            ptx::store_shared_16(to + i * 512, {__float_as_uint(x[0]), __float_as_uint(x[1]),
                                                __float_as_uint(x[2]), __float_as_uint(x[3])});
        }
        ptx::fence_proxy_async();
        arrive(memory.done(HALF));
    }

    /* n: the tile's number. MORE: it is not the item's last one. */
    template <bool MORE> __device__ __forceinline__ void tile(uint32_t n, uint32_t all)
    {
        float2 lse[ROWS / 8], delta[ROWS / 8];
        int row;
        bool masked;
        if constexpr (MORE) {
            memory.stages().await_full(n + 1);
            load_rows(lse, n + 1, 0);
            row = row_of[(n + 1) % S::STAGES] + ROWS * group;
            masked = is_masked(row);
            wgmma::fence();
            issue_product(s, n + 1, 0);
        }
        if (n > 0) {
            stage_queries<1>(n - 1);
        }
        if constexpr (MORE) {
            prepare_steps(n + 1);
        }
        ptx::mbarrier_wait(memory.scored(n), n / 2 & 1); /* dS of both groups is there */
        wgmma::fence();
        issue_sum_of(sums.dk, memory.scores(n), memory.streamed(n, 0));
        issue_own_queries(n);
        wgmma::wait<1>(); /* S and dK */
        wgmma::hold(sums.dk);
        if (n + S::STAGES < all) { /* both CTAs wait for it */
            arrive_at_both(memory.stages().empty(n));
        }
        if constexpr (MORE) {
            weigh(n + 1, row, masked, lse);
        }
        ptx::mbarrier_wait(memory.given(n), n / 2 & 1);
        wgmma::fence();
        issue_other_queries(n);
        if constexpr (MORE) {
            load_rows(delta, n + 1, 1);
            memory.d_o_stages().await_full(n + 1);
            wgmma::fence();
            issue_product<0, S::D / 32>(dp, n + 1, 1);
        }
        wgmma::wait<MORE ? 1 : 0>(); /* dQ */
        wgmma::hold(dq);
        if (lane == 0) { /* the other CTA waits for it */
            cluster::mbarrier_arrive(memory.taken(n), cluster::rank() ^ 1);
        }
#pragma unroll
        for (int i = 0; i < 16; i++) {
            kept[i] = dq[16 + i];
        }
        stage_queries<0>(n);
        if constexpr (MORE) {
            wgmma::fence();
            issue_product<S::D / 32, S::D / 16>(dp, n + 1, 1);
            await_weights();
            wgmma::fence();
            issue_sum_of(sums.dv, memory.weights(), memory.streamed(n + 1, 1));
            differentiate(n + 1, delta);
            end_values(n + 1, all);
        } else {
            stage_queries<1>(n);
        }
    }

    /* Ends dV of tile n: its P and dO are needed no more. */
    __device__ __forceinline__ void end_values(uint32_t n, uint32_t all)
    {
        wgmma::wait<0>();
        wgmma::hold(sums.dv);
        if (n + 1 < all) { /* weigh and both loaders wait for it */
            ptx::barrier_arrive(7 - group, 256);
            arrive_at_both(memory.d_o_stages().empty(n));
        }
    }

    __device__ __forceinline__ void run()
    {
        begin_sums(a, o, sums);
        if (o.all == 0) {
            return;
        }
        ptx::mbarrier_wait(memory.keys_full(), 0);
        if (HIDES && a.hides_keys) {
            ptx::mbarrier_wait(values_full(memory), 0);
            clear_hidden<S>(a, memory, o.item);
        }
        uint32_t n = 0, all = o.all;
        memory.stages().await_full(n);
        wgmma::fence();
        issue_product(s, n, 0);
        float2 lse[ROWS / 8], delta[ROWS / 8];
        load_rows(lse, n, 0);
        load_rows(delta, n, 1);
        prepare_steps(n);
        ptx::mbarrier_wait(values_full(memory), 0);
        memory.d_o_stages().await_full(n);
        wgmma::fence();
        issue_product(dp, n, 1);
        const int row = row_of[0] + ROWS * group;
        wgmma::wait<1>(); /* S */
        weigh(n, row, is_masked(row), lse);
        await_weights();
        wgmma::fence();
        issue_sum_of(sums.dv, memory.weights(), memory.streamed(n, 1));
        differentiate(n, delta);
        end_values(n, all);
        for (; n + 1 < all; n++) {
            tile<true>(n, all);
        }
        tile<false>(n, all);
    }

    __device__ __forceinline__ void store()
    {
        float terms[4] = {sizes.x, sizes.y, weights.x, weights.y};
        store_pair_item<S, HIDES>(a, memory, o, sums, terms, group);
    }
};

template <class S> __device__ __forceinline__ void wide_sm90(const attn_cuda_backward_params &a)
{
    run_pair<S, WideGroup<S>>(a);
}
