/*
 * keys_sm90.cuh: dK and dV of 128 keys of a KV head on sm_90a, or one of them: a warp loads, two
 * warpgroups have 64 keys each. Scores lie transposed, keys along the rows of the accumulators, so
 * that P and dS stay in registers as the left operands of dV and dK:
 *
 *     for each head of the group, each block of rows that see the keys:
 *         issue S^T = K Q^T | issue dP^T = V dO^T | P^T = 2^(c S^T - LSE)
 *         issue dV += P^T dO | dS^T = P^T (dP^T - delta) | issue dK += dS^T Q
 *
 * The last sum of a block runs on while the next block's S^T is computed.
 */
#pragma once
#include "cuda/kernel/backward/shape_sm90.cuh"

template <class S>
__device__ __forceinline__ GradBlocks row_blocks(const attn_problem &p, const GradItem &item)
{
    const attn_interval rows = grad_rows_of_keys(p, item.sequence, item.first, S::FIXED);
    const int first = (int)(rows.lo / S::STEP);
    const int last = (int)((rows.hi + S::STEP - 1) / S::STEP);
    return {first, rows.lo < rows.hi ? last - first : 0, (int)p.group};
}

/* Loads LSE, as the shape has it, and delta of STEP rows; a row that is not there has P = 0. One
 * warp. */
template <class S>
__device__ __forceinline__ void load_statistics(const attn_cuda_backward_params &a,
                                                const GradMemory<S> &memory, const GradItem &item,
                                                int head, int row, uint32_t n, float unit)
{
    const int64_t place = grad_row_place(a.grads.problem, item.sequence, head);
    for (int r = threadIdx.x % 32; r < S::STEP; r += 32) {
        const bool inside = row + r < item.sequence.nq_used;
        const float lse = inside ? ((const float *)a.lse)[place + row + r] : INFINITY,
                    delta = inside ? ((const float *)a.delta)[place + row + r] : 0;
        ptx::store_shared_4(memory.statistics(n) + 4 * r, S::statistic(lse));
        ptx::store_shared_4(memory.statistics(n) + 4 * (S::STEP + r), delta * unit);
    }
}

/* One warp. */
template <class S>
__device__ __forceinline__ void produce_keys(const attn_cuda_backward_params &a,
                                             const GradMemory<S> &memory, const GradItem &item,
                                             const GradBlocks &blocks)
{
    const bool first_lane = threadIdx.x % 32 == 0;
    const float unit = score_unit<S::BF16>(a, item.sequence.index, item.head);
    const int start = (int)item.sequence.q_first;
    const int batch = (int)item.sequence.tensor, kv = (int)item.head,
              key = (int)(item.sequence.k_first + item.first);
    if (first_lane) {
        ptx::mbarrier_arrive_expect(memory.fixed_full(), S::FIXED_TILES * S::FIXED_BYTES);
        load_tile<S>(memory.fixed(0), &a.k_map, memory.fixed_full(), S::FIXED, key, kv, batch,
                     tma::EVICT_FIRST);
        if (S::DK) {
            load_tile<S>(memory.fixed(1), &a.v_map, memory.fixed_full(), S::FIXED, key, kv, batch,
                         tma::EVICT_FIRST);
        }
    }
    for (uint32_t n = 0; n < (uint32_t)blocks.all(); n++) {
        const int head = kv * blocks.heads + (int)n / blocks.count,
                  row = (blocks.first + (int)n % blocks.count) * S::STEP;
        ptx::mbarrier_wait(memory.empty(n), memory.parity(n) ^ 1);
        if (first_lane) {
            ptx::mbarrier_arrive_expect(memory.full(n), 2 * S::STEP_BYTES);
            load_tile<S>(memory.streamed(n, 0), &a.q_map, memory.full(n), S::STEP, start + row,
                         head, batch, tma::EVICT_LAST);
            load_tile<S>(memory.streamed(n, 1), &a.d_o_map, memory.full(n), S::STEP, start + row,
                         head, batch, tma::EVICT_LAST);
        }
        load_statistics<S>(a, memory, item, head, row, n, unit);
        ptx::mbarrier_arrive(memory.full(n));
    }
}

/* Makes exponents of P^T of S^T: 64 keys, and rows FROM .. FROM + ROWS - 1 of a tile. */
template <int FROM, int ROWS, int N>
__device__ __forceinline__ void make_exponents(float (&s)[N], float c, uint32_t lse)
{
#pragma unroll
    for (int j = FROM / 8; j < (FROM + ROWS) / 8; j++) {
        const float2 x = ptx::load_shared_8(lse + 32 * j);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[4 * j + i] = fmaf(s[4 * j + i], c, -(i % 2 ? x.y : x.x));
        }
    }
}

/* Makes P^T of its exponents. key, row: the thread's first ones in the tile. */
template <int FROM, int ROWS, int N>
__device__ __forceinline__ void raise_exponents(float (&s)[N], const attn_band &band, bool masked,
                                                int key, int row)
{
    constexpr int LO = FROM / 2, HI = (FROM + ROWS) / 2;
    if (masked) {
#pragma unroll
        for (int i = LO; i < HI; i++) {
            const int k = key + i / 2 % 2 * 8, r = row + i / 4 * 8 + i % 2;
            const bool seen = k >= r + band.from && k < min(r + band.to, band.keys);
            s[i] = seen ? s[i] : -INFINITY;
        }
    }
#pragma unroll
    for (int i = LO; i < HI; i++) {
        s[i] = ptx::exp2(s[i]);
    }
}

/* Makes P^T of S^T. */
template <int FROM, int ROWS, int N>
__device__ __forceinline__ void probabilities(float (&s)[N], float c, uint32_t lse,
                                              const attn_band &band, bool masked, int key, int row)
{
    make_exponents<FROM, ROWS>(s, c, lse);
    raise_exponents<FROM, ROWS>(s, band, masked, key, row);
}

/* Packs P^T of those rows. */
template <bool BF16, int FROM, int ROWS, int N, bool ON>
__device__ __forceinline__ void
pack_probabilities(const float (&p)[N], uint32_t (&packed)[ROWS / 4], KeyTerms<ON> &terms)
{
#pragma unroll
    for (int i = 0; i < ROWS / 4; i += 2) {
        const float *const x = &p[FROM / 2 + 2 * i];
        packed[i] = ptx::pack_half<BF16>(x[0], x[1]);
        packed[i + 1] = ptx::pack_half<BF16>(x[2], x[3]);
        terms.add(x[0], x[1], x[2], x[3]);
    }
}

/* Computes dS = P (dP - delta); delta has the factor that dP gets. */
template <bool BF16>
__device__ __forceinline__ float score_gradient(float p, float dp, float delta, float unit)
{
    return p * (BF16 ? dp - delta : fmaf(dp, unit, -delta));
}

/* Computes and packs dS^T = P^T (dP^T - delta) of those rows. */
template <bool BF16, int FROM, int ROWS, int N, bool ON>
__device__ __forceinline__ void pack_scores(const float (&p)[N], const float (&dp)[N],
                                            uint32_t delta, float unit, uint32_t (&ds)[N / 2],
                                            KeyTerms<ON> &terms)
{
#pragma unroll
    for (int j = FROM / 8; j < (FROM + ROWS) / 8; j++) {
        const float2 base = ptx::load_shared_8(delta + 32 * j);
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = score_gradient<BF16>(p[4 * j + i], dp[4 * j + i], i % 2 ? base.y : base.x, unit);
        }
        ds[2 * j] = ptx::pack_half<BF16>(x[0], x[1]);
        ds[2 * j + 1] = ptx::pack_half<BF16>(x[2], x[3]);
        terms.add(x[0], x[1], x[2], x[3]);
    }
}

/* The sums of 64 keys, and operands that products still read: P^T and dS^T of the block before. */
template <class S> struct KeySums {
    static constexpr int N = S::STEP;
    float dk[S::DK ? S::COLUMNS / 2 : 1], dv[S::DV ? S::COLUMNS / 2 : 1];
    uint32_t p[S::DV ? N / 4 : 4], ds[S::DK ? N / 4 : 4];
    /* P, |dS| (range_sm90.cuh). Without score steps and V far apart dS is no larger than P. */
    KeyTerms<!S::BF16 && S::DV && !S::DK> weights;
    KeyTerms<!S::BF16 && S::DK && !S::DV> scores;

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < S::COLUMNS / 2; i++) {
            dk[S::DK ? i : 0] = 0, dv[S::DV ? i : 0] = 0;
        }
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            p[S::DV ? i : 0] = 0, ds[S::DK ? i : 0] = 0;
        }
        /* before any product: ptxas serialises all of them if zeros come between */
        wgmma::hold(dk);
        wgmma::hold(dv);
    }

    /* Whether a key of the warp has n terms that are too small. */
    __device__ __forceinline__ bool faint(float n) const
    {
        const bool by_weight = weights.faint(n), by_score = scores.faint(n);
        return by_weight || by_score;
    }

    /* Takes the factors of P and dS out of the sums. kept: the factor of what dropout keeps, which
     * is not in dV; nor in dK, if LIGHT (turns_sm90.cuh). */
    __device__ __forceinline__ void lower(float unit, float kept)
    {
        const float keys = power_of_2(-LIFT) / unit, values = S::BF16 ? 1 : power_of_2(-LIFT);
#pragma unroll
        for (int i = 0; i < S::COLUMNS / 2; i++) {
            if constexpr (!S::BF16 && S::DK) {
                dk[i] *= keys;
            }
            if constexpr (S::LIGHT) {
                dk[i] *= kept;
            }
            if constexpr (S::DV && (S::DROPS || !S::BF16)) {
                dv[i] *= values * kept;
            }
        }
    }

    /* Waits for the products of a block. */
    __device__ __forceinline__ void hold_values(uint32_t n)
    {
        if constexpr (S::DV) {
            wgmma::hold(dv);
            wgmma::keep(p, n);
        }
    }
    __device__ __forceinline__ void hold_keys(uint32_t n)
    {
        if constexpr (S::DK) {
            wgmma::hold(dk);
            wgmma::keep(ds, n);
        }
    }
};

template <class S>
__device__ __forceinline__ void
sum_block(const attn_cuda_backward_params &a, const GradMemory<S> &memory, const attn_band &band,
          KeySums<S> &sums, int group, uint32_t n, int first, int row, float unit)
{
    constexpr int N = S::STEP;
    const int lane = threadIdx.x % 32, key = first + threadIdx.x / 32 % 4 * 16 + lane / 4;
    const uint32_t q = memory.streamed(n, 0), d_o = memory.streamed(n, 1),
                   lse = memory.statistics(n) + lane % 4 * 8;
    const bool masked =
        row + N - 1 + band.from > first || min(row + band.to, band.keys) < first + 64;
    float s[N / 2], dp[S::DK ? N / 2 : 1];
    wgmma::fence();
    issue_scores<S, N>(s, ptx::uniform(memory.fixed(0) + 64 * 128 * group), ptx::uniform(q));
    if constexpr (S::DK) {
        issue_scores<S, N>(dp, ptx::uniform(memory.fixed(1) + 64 * 128 * group), ptx::uniform(d_o));
    }
    wgmma::wait<S::DK ? 1 : 0>(); /* S^T, and the block before */
    wgmma::hold(s);
    S::DK ? sums.hold_keys(n) : sums.hold_values(n);
    __syncwarp(); /* all lanes have read the statistics of the block before */
    if (n > 0 && threadIdx.x % 32 == 0) {
        ptx::mbarrier_arrive(memory.empty(n - 1));
    }
    probabilities<0, N>(s, a.scale_log2, lse, band, masked, key, row + lane % 4 * 2);
    if constexpr (S::DV) {
        pack_probabilities<S::BF16, 0, N>(s, sums.p, sums.weights);
        wgmma::fence();
        issue_sum<S, N>(sums.dv, sums.p, ptx::uniform(d_o));
    }
    if constexpr (S::DK) {
        wgmma::wait<S::DV ? 1 : 0>();
        wgmma::hold(dp);
        pack_scores<S::BF16, 0, N>(s, dp, lse + N * 4, unit, sums.ds, sums.scores);
        wgmma::fence();
        issue_sum<S, N>(sums.dk, sums.ds, ptx::uniform(q));
        if constexpr (S::DV) { /* one sum runs on beside the next block: ptxas serialises two */
            wgmma::wait<1>();
            sums.hold_values(n);
        }
    }
}

template <class S>
__device__ __forceinline__ void consume_keys(const attn_cuda_backward_params &a,
                                             const GradMemory<S> &memory, const GradItem &item,
                                             const GradBlocks &blocks)
{
    const int group = ptx::uniform(threadIdx.x / 128) - 1, first = (int)item.first + 64 * group;
    const uint32_t all = (uint32_t)ptx::uniform(blocks.all());
    const attn_band band = attn_mask_band(&a.grads.problem, &item.sequence);
    const float unit = score_unit<S::BF16>(a, item.sequence.index, item.head);
    KeySums<S> sums;
    sums.clear();
    ptx::mbarrier_wait(memory.fixed_full(), 0);
    for (uint32_t n = 0; n < all; n++) {
        ptx::mbarrier_wait(memory.full(n), memory.parity(n));
        sum_block<S>(a, memory, band, sums, group, n, first,
                     (blocks.first + (int)(n % (uint32_t)blocks.count)) * S::STEP, unit);
    }
    wgmma::wait<0>();
    sums.hold_keys(all);
    sums.hold_values(all);
    const int left = (int)item.sequence.k_rows - first, batch = (int)item.sequence.tensor,
              head = (int)item.head;
    const int64_t key = item.sequence.k_first + first;
    const attn_gradients &grads = a.grads;
    bool bad = sums.faint((float)(all * S::STEP));
    sums.lower(score_unit<S::BF16>(a, item.sequence.index, item.head), 1);
    if constexpr (S::DK) {
        bad |=
            store_pairs<S>(grads.dk, sums.dk, (float)grads.problem.scale, batch, key, head, left);
    }
    if constexpr (S::DV) {
        bad |= store_pairs<S>(grads.dv, sums.dv, 1, batch, key, head, left);
    }
    bad = any_of_group(group, bad);
    if (threadIdx.x % 128 == 0 && left > 0) {
        note_block(a, grad_note(grads.problem, a.items, item, first), bad);
    }
}

template <class S> __device__ __forceinline__ void keys_sm90(const attn_cuda_backward_params &a)
{
    const GradMemory<S> memory = grad_memory<S>();
    const GradItem item = grad_item(a.grads.problem, a.items, blockIdx.x);
    if (item.empty) {
        return;
    }
    const GradBlocks blocks = row_blocks<S>(a.grads.problem, item);
    if (threadIdx.x == 0) {
        memory.init_barriers(1 + 32);
    }
    __syncthreads();
    if (ptx::uniform(threadIdx.x / 128) == 0) {
        ptx::registers_lower<24>();
        if (threadIdx.x < 32) {
            produce_keys<S>(a, memory, item, blocks);
        }
    } else {
        ptx::registers_raise<240>();
        consume_keys<S>(a, memory, item, blocks);
    }
}
