/*
 * keys_sm90.cuh: dK and dV of 128 keys of a KV head on sm_90a: a warp loads, two warpgroups have 64
 * keys each. Scores lie transposed, keys along the rows of the accumulators, so that P and dS stay
 * in registers as the left operands of dV and dK:
 *
 *     for each head of the group, each block of 64 rows that see the keys:
 *         issue S^T = K Q^T | issue dP^T = V dO^T | P^T = 2^(c S^T - LSE)
 *         issue dV += P^T dO | dS^T = P^T (dP^T - delta) | issue dK += dS^T Q
 */
#pragma once
#include "cuda/kernel/backward/shape_sm90.cuh"

__device__ __forceinline__ GradBlocks row_blocks(const attn_problem &p, const GradItem &item)
{
    const attn_interval rows = grad_rows_of_keys(p, item.sequence, item.first, 128);
    const int first = (int)(rows.lo / 64);
    return {first, rows.lo < rows.hi ? (int)((rows.hi + 63) / 64) - first : 0, (int)p.group};
}

/* LSE, in exponents of 2, and delta of 64 rows; a row that is not there has P = 0. One warp. */
template <class S>
__device__ __forceinline__ void load_statistics(const attn_cuda_backward_params &a,
                                                const GradMemory<S> &memory, const GradItem &item,
                                                int head, int row, uint32_t n)
{
    const int64_t place = grad_row_place(a.grads.problem, item.sequence, head);
    for (int r = threadIdx.x % 32; r < S::BOX; r += 32) {
        const bool inside = row + r < item.sequence.nq_used;
        const float lse = inside ? ((const float *)a.lse)[place + row + r] : INFINITY,
                    delta = inside ? ((const float *)a.delta)[place + row + r] : 0;
        ptx::store_shared_4(memory.statistics(n) + 4 * r, lse * 1.4426950408889634f);
        ptx::store_shared_4(memory.statistics(n) + 4 * (S::BOX + r), delta);
    }
}

/* One warp. */
template <class S>
__device__ __forceinline__ void produce_keys(const attn_cuda_backward_params &a,
                                             const GradMemory<S> &memory, const GradItem &item,
                                             const GradBlocks &blocks)
{
    const bool first_lane = threadIdx.x % 32 == 0;
    const int batch = (int)item.sequence.tensor, key = (int)item.first, kv = (int)item.head;
    if (first_lane) {
        ptx::mbarrier_arrive_expect(memory.fixed_full(), 2 * S::FIXED_BYTES);
        load_tile<S>(memory.fixed(0), &a.k_map, memory.fixed_full(), S::FIXED, key, kv, batch,
                     tma::EVICT_FIRST);
        load_tile<S>(memory.fixed(1), &a.v_map, memory.fixed_full(), S::FIXED, key, kv, batch,
                     tma::EVICT_FIRST);
    }
    for (uint32_t n = 0; n < (uint32_t)blocks.all(); n++) {
        const int head = kv * blocks.heads + (int)n / blocks.count,
                  row = (blocks.first + (int)n % blocks.count) * S::STEP;
        ptx::mbarrier_wait(memory.empty(n), memory.parity(n) ^ 1);
        if (first_lane) {
            ptx::mbarrier_arrive_expect(memory.full(n), 2 * S::STEP_BYTES);
            load_tile<S>(memory.streamed(n, 0), &a.q_map, memory.full(n), S::STEP, row, head, batch,
                         tma::EVICT_LAST);
            load_tile<S>(memory.streamed(n, 1), &a.d_o_map, memory.full(n), S::STEP, row, head,
                         batch, tma::EVICT_LAST);
        }
        load_statistics<S>(a, memory, item, head, row, n);
        ptx::mbarrier_arrive(memory.full(n));
    }
}

/* P^T of 64 keys and 64 rows, in place of S^T. key, row: this thread's first ones. */
__device__ __forceinline__ void probabilities(float (&s)[32], float c, uint32_t lse,
                                              const attn_band &band, bool masked, int key, int row)
{
    if (masked) {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const int k = key + i / 2 % 2 * 8, r = row + i / 4 * 8 + i % 2;
            s[i] = k >= r + band.from && k < r + band.to ? s[i] : -INFINITY;
        }
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float2 x = ptx::load_shared_8(lse + 32 * j);
        s[4 * j] = ptx::exp2(fmaf(s[4 * j], c, -x.x));
        s[4 * j + 1] = ptx::exp2(fmaf(s[4 * j + 1], c, -x.y));
        s[4 * j + 2] = ptx::exp2(fmaf(s[4 * j + 2], c, -x.x));
        s[4 * j + 3] = ptx::exp2(fmaf(s[4 * j + 3], c, -x.y));
    }
}

/* dS^T = P^T (dP^T - delta), packed. */
template <bool BF16>
__device__ __forceinline__ void pack_scores(const float (&p)[32], const float (&dp)[32],
                                            uint32_t delta, uint32_t (&ds)[16])
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float2 x = ptx::load_shared_8(delta + 32 * j);
        ds[2 * j] = ptx::pack_half<BF16>(p[4 * j] * (dp[4 * j] - x.x),
                                         p[4 * j + 1] * (dp[4 * j + 1] - x.y));
        ds[2 * j + 1] = ptx::pack_half<BF16>(p[4 * j + 2] * (dp[4 * j + 2] - x.x),
                                             p[4 * j + 3] * (dp[4 * j + 3] - x.y));
    }
}

template <class S>
__device__ __forceinline__ void consume_keys(const attn_cuda_backward_params &a,
                                             const GradMemory<S> &memory, const GradItem &item,
                                             const GradBlocks &blocks)
{
    const int group = ptx::uniform(threadIdx.x / 128) - 1, lane = threadIdx.x % 32;
    const int first = (int)item.first + 64 * group,
              key = first + threadIdx.x / 32 % 4 * 16 + lane / 4;
    const attn_band band = a.band;
    const float c = a.scale_log2;
    const uint32_t k = memory.fixed(0) + 64 * 128 * group, v = memory.fixed(1) + 64 * 128 * group,
                   all = (uint32_t)ptx::uniform(blocks.all());
    float dk[S::D / 2], dv[S::D / 2], s[32], dp[32];
    uint32_t p[16], ds[16];
#pragma unroll
    for (int i = 0; i < S::D / 2; i++) {
        dk[i] = dv[i] = 0;
    }
    ptx::mbarrier_wait(memory.fixed_full(), 0);
    for (uint32_t n = 0; n < all; n++) {
        const uint32_t q = memory.streamed(n, 0), d_o = memory.streamed(n, 1),
                       lse = memory.statistics(n) + lane % 4 * 8;
        const int row = (blocks.first + (int)(n % (uint32_t)blocks.count)) * S::STEP;
        const bool masked = row + S::STEP - 1 + band.from > first || row + band.to < first + 64;
        ptx::mbarrier_wait(memory.full(n), memory.parity(n));
        wgmma::fence();
        issue_scores<S, 64>(s, k, q);
        issue_scores<S, 64>(dp, v, d_o);
        wgmma::wait<1>();
        wgmma::hold(s);
        probabilities(s, c, lse, band, masked, key, row + lane % 4 * 2);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            p[i] = ptx::pack_half<S::BF16>(s[2 * i], s[2 * i + 1]);
        }
        wgmma::fence();
        issue_sum<S, 64>(dv, p, d_o);
        wgmma::wait<1>();
        wgmma::hold(dp);
        pack_scores<S::BF16>(s, dp, lse + S::BOX * 4, ds);
        wgmma::fence();
        issue_sum<S, 64>(dk, ds, q);
        wgmma::wait<0>();
        wgmma::hold(dv);
        wgmma::hold(dk);
        wgmma::keep(p, n);
        wgmma::keep(ds, n);
        if (threadIdx.x % 128 == 0) {
            ptx::mbarrier_arrive(memory.empty(n));
        }
    }
    const int left = (int)item.sequence.k_rows - first, batch = (int)item.sequence.tensor;
    const attn_gradients &grads = a.grads;
    bool bad =
        store_sums<S>(grads.dk, dk, (float)grads.problem.scale, batch, first, (int)item.head, left);
    bad |= store_sums<S>(grads.dv, dv, 1, batch, first, (int)item.head, left);
    bad = any_of_group(group, bad);
    if (threadIdx.x % 128 == 0 && left > 0) {
        a.bad[grad_flag(a, item.sequence.tensor, item.head, first)] = bad;
    }
}

template <class S> __device__ __forceinline__ void keys_sm90(const attn_cuda_backward_params &a)
{
    extern __shared__ unsigned char shared[];
    const uint32_t start = ptx::shared_address(shared);
    const GradMemory<S> memory = {start + (-start & 1023)};
    const GradItem item = grad_item(a.grads.problem, a.items, blockIdx.x);
    const GradBlocks blocks = row_blocks(a.grads.problem, item);
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
