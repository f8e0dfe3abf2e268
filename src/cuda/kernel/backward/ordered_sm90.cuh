/*
 * ordered_sm90.cuh: dK and dV of 128 keys of a KV head on sm_90a, and what the keys add to dQ: five
 * products. A warp loads, two warpgroups have 64 keys each:
 *
 *     for each head of the share (shares_sm90.cuh), each tile of rows that see the keys:
 *         issue dP^T = V dO^T | P^T = 2^(c S^T - LSE) | issue dV += P^T dO
 *         dS^T = P^T (dP^T - delta), to shared memory | issue S^T of the next tile
 *         issue dQ = dS K, dK += dS^T Q | add dQ to the tile's sums in global memory, or, if no
 *             other keys add after these, add the sums to it and round it (round_sm90.cuh)
 *
 * The order of each sum of dQ is that of the keys, the last ones first: a tile of rows has a turn,
 * the number of the block of keys that has added, plus 1. A block waits until the one behind it has
 * added (await_turns), and says that it has (hand_turns_on). CTAs do items in the order of tickets,
 * and an item waits for lower tickets alone, so a call ends however many CTAs run at once.
 * Under a causal mask a block begins with rows that the blocks behind it do not see, so blocks that
 * start together do not wait; without a mask they lag by a tile each, once.
 */
#pragma once
#include "cuda/kernel/backward/ends_sm90.cuh"
#include "cuda/kernel/backward/hidden_sm90.cuh"
#include "cuda/kernel/backward/loader_sm90.cuh"
#include "cuda/kernel/backward/lone_sm90.cuh"
#include "cuda/kernel/backward/steps_sm90.cuh"

/* Registers of a warpgroup beside its sums. */
template <class S> struct OrderedGroup {
    static constexpr bool EARLY = S::STEP == 64; /* dP fits beside dS of the tile before */
    static constexpr int AT_ONCE = S::HELPED ? S::STEP / 2 : S::STEP; /* rows of dP */
    static constexpr int PART = EARLY || S::TABLED || S::HELPED ? 16 : 32;
    static constexpr TileReads READS = !S::TABLED   ? READ_GATHERED
                                       : S::STEPPED ? READ_EITHER
                                                    : READ_COPIED;
    static constexpr int PARTS = S::STEPPED ? S::STEP / PART : 2; /* of P^T in registers */
    static constexpr bool HIDES = !S::STEPPED && !S::LONE;        /* keys of an item */
    const attn_cuda_backward_params &a;
    const GradMemory<S> &memory;
    const OrderedItem &o;
    const int *row_of;
    uint32_t begin = 0; /* COUNTS: number of the item's first tile */
    KeySums<S> sums;
    uint32_t p[PARTS][PART / 4];
    float s[S::STEP / 2]; /* S^T of the tile to come */
    float2 own_sizes = {0, 0};
    bool enough = false;                          /* note_scores() */
    int bad_values = 0;                           /* LATE: what give_values said */
    uint32_t drop[S::STEP / 64] = {};             /* of the tile to come (steps_sm90.cuh) */
    uint32_t shown[S::MASKED ? S::STEP / 64 : 1]; /* what the mask shows of it (read_bits) */

    static constexpr bool HAS_GROUP = (EARLY || !S::DROPS) && !S::STEPPED && !S::APART &&
                                      (!S::DROPPED || S::BF16); /* there is a register for it */
    /* The same for numbers of the item's first and last tile. Slower with a bias, and with ALiBi
     * beside S^T of the next tile behind dS. */
    static constexpr bool COUNTS = (!S::DROPS || S::DROPPED) && !S::SLOPED && !S::BIASED;
    int own_group = HAS_GROUP ? ptx::uniform(thread_number() / 128) - 1 : 0;

    __device__ __forceinline__ int group() const
    {
        const int both = thread_number() / 128;
        return HAS_GROUP ? own_group : (EARLY ? both : ptx::uniform(both)) - 1;
    }

    /* Sums of |dS^T| of this thread's two keys (range_sm90.cuh). */
    __device__ __forceinline__ float2 &sizes()
    {
        if constexpr (S::DROPS) {
            return shared_terms(1);
        } else {
            return own_sizes;
        }
    }

    __device__ __forceinline__ void issue_next(uint32_t n)
    {
        memory.stages().await_full(n);
        wgmma::fence();
        issue_scores<S, S::STEP>(s, memory.fixed(0) + 64 * 128 * group(), memory.streamed(n, 0));
    }

    /* Waits for dK of the tile before. LEFT: groups behind it. */
    template <int LEFT, bool GIVE = true> __device__ __forceinline__ void retire_keys(uint32_t n)
    {
        wgmma::wait<LEFT>();
        sums.hold_keys(n);
        if constexpr (S::HELPED) {
            __syncwarp(); /* all lanes have read the statistics */
        }
        const bool give = n > first_tile() && (GIVE || !leaves_late<S>(o));
        if (give && thread_number() % 32 == 0) {
            ptx::mbarrier_arrive(memory.stages().empty(n - 1));
        }
    }

    /* Whether signs of P may say what dropout drops. */
    __device__ __forceinline__ bool drops() const
    {
        return S::STEPPED || a.grads.problem.dropout.on;
    }

    /* Issues dV and computes dS^T, PART rows at a time: registers of those before are free again.
     * On return the last part of dV still runs. */
    template <int FROM>
    __device__ __forceinline__ void differentiate(float (&dp)[AT_ONCE / 2], uint32_t delta,
                                                  uint32_t d_o, uint32_t n)
    {
        constexpr int AT = FROM / PART % PARTS, BEFORE = (AT + PARTS - 1) % PARTS,
                      FIRST = FROM / AT_ONCE * AT_ONCE;
        if constexpr (S::LIGHT) {
            pack_weights<S::BF16, FROM, PART>(s, p[AT], drops());
            if constexpr (EARLY) {
                note_weights<S::BF16, FROM, PART>(s, drops(), enough);
            }
        } else if constexpr (!S::STEPPED) {
            pack_probabilities<S::BF16, FROM, PART>(s, p[AT]);
        }
        wgmma::fence();
        issue_sum<S, S::STEP, FROM, PART>(sums.dv, p[AT], d_o);
        wgmma::wait<1>(); /* dP, or the part before */
        if constexpr (FROM == FIRST) {
            wgmma::hold(dp);
        }
        if constexpr (FROM > 0) {
            wgmma::keep(p[BEFORE], n);
        }
        if constexpr (S::LIGHT && (S::BF16 || S::HELPED || S::DROPPED)) {
            if (drops()) {
                drop_gradients<FROM, PART, FIRST>(dp, drop);
            }
            pack_absolute<S::BF16, FROM, PART, FIRST>(s, dp, delta, a.kept * o.unit, sums.ds);
        } else if (S::DROPS && drops()) {
            pack_step_scores<S::BF16, FROM, PART, S::LIGHT && !S::TABLED && !S::BF16>(
                s, dp, S::OUTSIDE ? 1 : a.kept * o.unit, delta, sums.ds);
        } else {
            pack_scores<S::BF16, FROM, PART>(s, dp, delta, o.unit, sums.ds);
        }
        if constexpr (FROM + PART < FIRST + AT_ONCE) {
            differentiate<FROM + PART>(dp, delta, d_o, n);
        }
    }

    /* The slope of tile n in units of exponents: loader_sm90.cuh. */
    __device__ __forceinline__ const int &slope(uint32_t n) const
    {
        return row_of[2 * S::STAGES + n % S::STAGES];
    }

    /* Makes P^T of S^T, ROWS rows from FROM on of tile n: with one score step or dropout at most.
     * key, row: the thread's first ones. */
    template <int FROM, int ROWS>
    __device__ __forceinline__ void weigh(uint32_t n, uint32_t lse, const attn_band &band,
                                          bool masked, int key, int row)
    {
        if constexpr (!S::LONE) {
            probabilities<S::BF16, FROM, ROWS>(s, a.scale_log2, lse, band, masked, a.hides_keys,
                                               key, row);
            return;
        }
        make_exponents<FROM, ROWS>(s, a.scale_log2, lse);
        if constexpr (S::SLOPED) {
            add_slope<FROM, ROWS>(s, __uint_as_float((uint32_t)slope(n)),
                                  (float)(row + o.item.sequence.diagonal - key));
        }
        if constexpr (S::BIASED) {
            add_table<S, FROM, ROWS>(memory, n, group(), s);
        }
        if constexpr (S::MASKED) {
            hide_table<FROM, ROWS>(shown, s);
        }
        raise_exponents<FROM, ROWS>(s, band, masked, key, row);
        if (S::DROPPED && drops()) { /* of a branch of its own the compiler makes R2P */
            mark_dropped<FROM, ROWS>(s, drop);
        }
    }

    /* What a warp has of tile n, for its steps. */
    __device__ __forceinline__ StepTile steps_of(uint32_t n) const
    {
        const int lane = thread_number() % 32, row = row_of[n % S::STAGES],
                  first = (int)o.item.first + 64 * group(),
                  key = first + thread_number() / 32 % 4 * 16 + lane / 4;
        return {a,      o.item.sequence,      row_of[S::STAGES + n % S::STAGES],
                key,    row + lane % 4 * 2,   memory.tables(),
                o.band, is_masked(row, first)};
    }

    /* Whether the band hides some of a tile, which begins with these. */
    __device__ __forceinline__ bool is_masked(int row, int key) const
    {
        return row + S::STEP - 1 + o.band.from > key ||
               min(row + o.band.to, o.band.keys) < key + 64;
    }

    /* Of the item. */
    __device__ __forceinline__ uint32_t first_tile() const
    {
        return COUNTS ? begin : S::STAYS ? o.from : 0;
    }

    /* n: the tile's number. MORE: it is not the item's last one. */
    template <bool MORE> __device__ __forceinline__ void tile(uint32_t n)
    {
        constexpr int N = S::STEP;
        const uint32_t q = memory.streamed(n, 0), d_o = memory.streamed(n, 1),
                       values = memory.fixed(1) + 64 * 128 * group();
        float dp[AT_ONCE / 2];
        if constexpr (EARLY && S::APART) {
            memory.d_o_stages().await_full(n);
        }
        if constexpr (EARLY) {
            wgmma::fence();
            issue_scores<S, N>(dp, values, d_o);
        }
        const int lane = thread_number() % 32, row = row_of[n % S::STAGES],
                  first = (int)o.item.first + 64 * group(),
                  key = first + thread_number() / 32 % 4 * 16 + lane / 4;
        const uint32_t lse = memory.statistics(n) + lane % 4 * 8;
        const attn_band band = o.band;
        const bool masked = is_masked(row, first), ends = rounds<S>(o.item.first);
        if constexpr (S::HELPED) {
            take_bits(n, group(), drop);
            steps_of(n).template weigh_lightly<S::BF16, S::TABLED, 0, N / 2>(s, lse, slope(n),
                                                                             drop);
        } else if constexpr (!S::DROPS || S::DROPPED) {
            weigh<0, N / 2>(n, lse, band, masked, key, row + lane % 4 * 2);
        } else if constexpr (!EARLY) {
            const StepTile steps = steps_of(n);
            steps.find_dropped(drop);
            steps.weigh_lightly<S::BF16, S::TABLED, 0, N>(s, lse, slope(n), drop);
            note_weights<S::BF16, 0, N>(s, drops(), enough);
            wgmma::hold(s); /* without this ptxas spills */
        }
        if (!S::HELPED && n > first_tile()) {
            give_sums<S>(memory, n - 1);
        }
        if constexpr (!EARLY) {
            retire_keys<0>(n);
            if constexpr (S::APART) {
                memory.d_o_stages().await_full(n);
            }
            wgmma::fence();
            issue_scores<S, AT_ONCE, 0, N>(dp, values, d_o);
        }
        if constexpr (S::HELPED) {
            const uint32_t delta = memory.statistics(n) + lane % 4 * 8 + N * 4;
            const StepTile steps = steps_of(n);
            steps.weigh_lightly<S::BF16, S::TABLED, N / 2, N / 4>(s, lse, slope(n), drop);
            note_weights<S::BF16, 0, N / 2>(s, drops(), enough);
            differentiate<0>(dp, delta, d_o, n);
            wgmma::fence();
            issue_scores<S, AT_ONCE, 0, N>(dp, values, d_o + AT_ONCE * 128);
            steps.weigh_lightly<S::BF16, S::TABLED, 3 * N / 4, N / 4>(s, lse, slope(n), drop);
            note_weights<S::BF16, N / 2, N / 2>(s, drops(), enough);
            differentiate<N - AT_ONCE>(dp, delta, d_o, n);
        }
        if constexpr (EARLY && S::DROPS) {
            retire_keys<1>(n); /* P^T takes the registers of dS^T of the tile before */
        }
        if constexpr (S::STEPPED) {
            StepTile steps = steps_of(n);
            steps.drop[0] = drop[0];
            steps.run<S::BF16, READS>(s, p, lse, []() -> float2 & { return shared_terms(0); });
        } else if constexpr (S::DROPPED) {
            weigh<N / 2, N / 2>(n, lse, band, masked, key, row + lane % 4 * 2);
        } else if constexpr (EARLY && S::LIGHT) {
            steps_of(n).template weigh_lightly<S::BF16, S::TABLED, 0, N>(s, lse, slope(n), drop);
        } else if constexpr (!S::DROPS) {
            weigh<N / 2, N / 2>(n, lse, band, masked, key, row + lane % 4 * 2);
            if constexpr (EARLY) {
                retire_keys<1, MORE>(n);
            }
        }
        if constexpr (!S::HELPED) {
            differentiate<0>(dp, memory.statistics(n) + thread_number() % 4 * 8 + N * 4, d_o, n);
        }
        if constexpr (MORE && EARLY && S::SLOPED) {
            issue_next(n + 1);
        }
        ptx::barrier_sync(SPACE + group(), 256); /* dS of the tile before has been read */
        stage_scores<S>(memory.scores(), sums.ds);
        if constexpr (MORE && EARLY && !S::SLOPED) {
            issue_next(n + 1);
        }
        /* now, since shared memory is slow beside dQ and dK */
        const uint4 call = MORE && S::DROPPED ? tile_call<S>(o, row_of, group(), n + 1) : uint4{};
        ptx::fence_proxy_async();
        if constexpr (MORE && !EARLY) {
            issue_next(n + 1);
        }
        if constexpr (S::HELPED) {
            ptx::barrier_arrive(SCORES, 384);
        } else {
            ptx::barrier_sync(5, 256); /* dS of both is there */
        }
        wgmma::wait<MORE ? 1 : 0>(); /* dV */
        wgmma::hold(sums.dv);
        if (S::APART && thread_number() % 32 == 0) {
            ptx::mbarrier_arrive(memory.d_o_stages().empty((uint32_t)ptx::opaque((int)n)));
        }
        wgmma::keep(p[(N / PART - 1) % PARTS], n);
        wgmma::fence();
        QuerySums<S> query;
        if constexpr (!S::HELPED) {
            query.issue(memory.scores(), memory.fixed(0), group());
        }
        issue_sum<S, N>(sums.dk, sums.ds, q);
        if constexpr (!MORE) {
            bad_values = give_values<S>(a, memory, o, sums, n);
        }
        if constexpr (MORE && S::DROPPED) {
            find_calls(a, call, drop);
        } else if constexpr (MORE && EARLY && S::DROPS) {
            steps_of(n + 1).find_dropped(drop);
        }
        if constexpr (MORE && S::TABLED) {
            steps_of(n + 1).template fetch<S::STEP, READS>();
        }
        if constexpr (MORE && S::MASKED) {
            read_mask(memory, n + 1, shown);
        }
        if constexpr (!S::BF16) {
            note_scores<S>(a, o.item, sums.ds, sizes(), enough);
        }
        wgmma::wait<1>(); /* dQ, and S^T of the next tile */
        if constexpr (S::HELPED) {
            wgmma::hold(s);
            return release_keys<S, !MORE>(memory);
        }
        wgmma::hold(query.dq);
        if (MORE || S::STORES) { /* give_keys waits for it */
            ptx::barrier_arrive(4 - group(), 256);
        }
        wgmma::hold(s);
        release_keys<S, !MORE>(memory, S::LATE && o.all == 1); /* dV leaves from where V is */
        if (ends) {
            round_tile<S>(a, memory, o, query, n, row, row_of[S::STAGES + n % S::STAGES], group());
        } else {
            ptx::mbarrier_wait(memory.room(n + 1), ((n + 1) / 2 & 1) ^ 1); /* of the tile before */
            query.stage(memory.sums());
        }
        if constexpr (MORE && S::STEPPED && !S::TABLED) {
            steps_of(n + 1).template fetch<S::STEP, READS>();
        }
    }

    __device__ __forceinline__ void run()
    {
        begin_sums(a, o, sums);
        if constexpr (!S::BF16 && S::DROPS) {
            shared_terms(0) = shared_terms(1) = make_float2(0, 0);
        }
        if (o.all == 0) {
            return release_keys<S>(memory);
        }
        if (HIDES && a.hides_keys) {
            clear_hidden<S>(a, memory, o.item);
        }
        uint32_t n = S::STAYS ? o.from : 0;
        if constexpr (!S::HELPED) {
            ptx::barrier_arrive(4 - group(), 256);
        }
        issue_next(n);
        if constexpr (S::STORES && !S::LATE) {
            end_stores();
        }
        if constexpr (S::TABLED) {
            steps_of(n).template fetch<S::STEP, READS>();
        }
        if constexpr (S::DROPPED) {
            find_calls(a, tile_call<S>(o, row_of, group(), n), drop);
        } else if constexpr (EARLY && S::DROPS) {
            steps_of(n).find_dropped(drop);
        }
        if constexpr (S::MASKED) {
            read_mask(memory, n, shown);
        }
        wgmma::wait<0>();
        wgmma::hold(s);
        begin = n;
        const uint32_t last = n + o.all - 1;
        for (; n < (COUNTS ? last : first_tile() + o.all - 1); n++) {
            tile<true>(n);
        }
        tile<false>(n);
        if constexpr (!S::HELPED) {
            give_sums<S>(memory, n);
        }
        retire_keys<0, false>(n + 1);
    }

    __device__ __forceinline__ void store()
    {
        store_item<S, HIDES>(a, memory, o, sums, sizes(), group(), bad_values);
        end_item<S>(memory, o);
    }
};

template <class S> __device__ __forceinline__ void ordered_sm90(const attn_cuda_backward_params &a)
{
    run_ordered<S, OrderedGroup<S>, OrderedLoader<S>>(a);
}
