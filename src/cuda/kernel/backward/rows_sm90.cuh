/*
 * rows_sm90.cuh: dQ of 128 rows of a query head on sm_90a: a thread loads, two warpgroups have 64
 * rows each:
 *
 *     for each block of keys that the rows see:
 *         issue S = Q K^T | issue dP = dO V^T | P = 2^(c S - LSE) | dS = P (dP - delta)
 *         issue dQ += dS K
 */
#pragma once
#include "cuda/kernel/backward/keys_sm90.cuh"

template <class S>
__device__ __forceinline__ GradBlocks key_blocks(const attn_problem &p, const GradItem &item)
{
    const attn_interval keys =
        attn_mask_range(&p, &item.sequence, item.first, item.first + S::FIXED).hull;
    const int first = keys.lo < keys.hi ? (int)(keys.lo / S::STEP) : 0;
    return {first, keys.lo < keys.hi ? (int)((keys.hi + S::STEP - 1) / S::STEP) - first : 0, 1};
}

/* One thread. */
template <class S>
__device__ __forceinline__ void produce_rows(const attn_cuda_backward_params &a,
                                             const GradMemory<S> &memory, const GradItem &item,
                                             const GradBlocks &blocks)
{
    const int batch = (int)item.sequence.tensor, head = (int)item.head,
              row = (int)(item.sequence.q_first + item.first),
              kv = head / (int)a.grads.problem.group, start = (int)item.sequence.k_first;
    ptx::mbarrier_arrive_expect(memory.fixed_full(), 2 * S::FIXED_BYTES);
    load_tile<S>(memory.fixed(0), &a.q_map, memory.fixed_full(), S::FIXED, row, head, batch,
                 tma::EVICT_FIRST);
    load_tile<S>(memory.fixed(1), &a.d_o_map, memory.fixed_full(), S::FIXED, row, head, batch,
                 tma::EVICT_FIRST);
    for (uint32_t n = 0; n < (uint32_t)blocks.count; n++) {
        const int key = start + (blocks.first + (int)n) * S::STEP;
        ptx::mbarrier_wait(memory.empty(n), memory.parity(n) ^ 1);
        ptx::mbarrier_arrive_expect(memory.full(n), 2 * S::STEP_BYTES);
        load_tile<S>(memory.streamed(n, 0), &a.k_map, memory.full(n), S::STEP, key, kv, batch,
                     tma::EVICT_LAST);
        load_tile<S>(memory.streamed(n, 1), &a.v_map, memory.full(n), S::STEP, key, kv, batch,
                     tma::EVICT_LAST);
    }
}

template <class S>
__device__ __forceinline__ void consume_rows(const attn_cuda_backward_params &a,
                                             const GradMemory<S> &memory, const GradItem &item,
                                             const GradBlocks &blocks)
{
    constexpr int N = S::STEP;
    const int group = ptx::uniform(threadIdx.x / 128) - 1, lane = threadIdx.x % 32;
    const int first = (int)item.first + 64 * group,
              row = first + threadIdx.x / 32 % 4 * 16 + lane / 4;
    const attn_band band = attn_mask_band(&a.grads.problem, &item.sequence);
    const float c = a.scale_log2;
    const uint32_t q = memory.fixed(0) + 64 * 128 * group, d_o = memory.fixed(1) + 64 * 128 * group,
                   all = (uint32_t)ptx::uniform(blocks.count);
    const int64_t place = grad_row_place(a.grads.problem, item.sequence, item.head);
    const float unit =
        score_unit<S::BF16>(a, item.sequence.index, item.head / a.grads.problem.group);
    float dq[S::D / 2], lse[2], delta[2];
    uint32_t ds[N / 4] = {};
#pragma unroll
    for (int i = 0; i < S::D / 2; i++) {
        dq[i] = 0;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const bool inside = row + 8 * half < band.rows;
        lse[half] =
            lifted<S::BF16>(inside ? ((const float *)a.lse)[place + row + 8 * half] : INFINITY);
        delta[half] = inside ? ((const float *)a.delta)[place + row + 8 * half] * unit : 0;
    }
    ptx::mbarrier_wait(memory.fixed_full(), 0);
    for (uint32_t n = 0; n < all; n++) {
        const uint32_t k = memory.streamed(n, 0), v = memory.streamed(n, 1);
        const int block = (blocks.first + (int)n) * N, key = block + lane % 4 * 2;
        const bool masked =
            first + 63 + band.from > block || min(first + band.to, band.keys) < block + N;
        float s[N / 2], dp[N / 2], e[N / 2];
        ptx::mbarrier_wait(memory.full(n), memory.parity(n));
        wgmma::fence();
        issue_scores<S, N>(s, ptx::uniform(q), ptx::uniform(k));
        issue_scores<S, N>(dp, ptx::uniform(d_o), ptx::uniform(v));
        wgmma::wait<1>(); /* S, and products of the block before */
        wgmma::hold(s);
        wgmma::hold(dq);
        wgmma::keep(ds, n);
        if (n > 0 && threadIdx.x % 32 == 0) {
            ptx::mbarrier_arrive(memory.empty(n - 1));
        }
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            e[i] = fmaf(s[i], c, -lse[i / 2 % 2]);
        }
        if (masked) {
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                const int j = key + i / 4 * 8 + i % 2, r = row + i / 2 % 2 * 8;
                e[i] = j >= r + band.from && j < min(r + band.to, band.keys) ? e[i] : -INFINITY;
            }
        }
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            e[i] = ptx::exp2(e[i]);
        }
        wgmma::wait<0>();
        wgmma::hold(dp);
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            ds[i] = ptx::pack_half<S::BF16>(
                score_gradient<S::BF16>(e[2 * i], dp[2 * i], delta[i % 2], unit),
                score_gradient<S::BF16>(e[2 * i + 1], dp[2 * i + 1], delta[i % 2], unit));
        }
        wgmma::fence();
        issue_sum<S, N>(dq, ds, ptx::uniform(k));
    }
    wgmma::wait<0>();
    wgmma::hold(dq);
    wgmma::keep(ds, all);
#pragma unroll
    for (int i = 0; i < S::D / 2 && !S::BF16; i++) {
        dq[i] *= power_of_2(-LIFT) / unit;
    }
    const int left = (int)item.sequence.nq - first;
    const attn_gradients &grads = a.grads;
    const bool faint = !S::BF16 && has_faint_rows(a, item, row - (int)item.first);
    const bool bad = any_of_group(
        group, store_pairs<S>(grads.dq, dq, (float)grads.problem.scale, (int)item.sequence.tensor,
                              item.sequence.q_first + first, (int)item.head, left) ||
                   faint);
    if (threadIdx.x % 128 == 0 && left > 0) {
        note_block(a, grad_note(grads.problem, a.items, item, first), bad);
    }
}

template <class S> __device__ __forceinline__ void rows_sm90(const attn_cuda_backward_params &a)
{
    const GradMemory<S> memory = grad_memory<S>();
    const GradItem item = grad_item(a.grads.problem, a.items, blockIdx.x);
    if (item.empty) {
        return;
    }
    const GradBlocks blocks = key_blocks<S>(a.grads.problem, item);
    if (threadIdx.x == 0) {
        memory.init_barriers(1);
    }
    __syncthreads();
    if (ptx::uniform(threadIdx.x / 128) == 0) {
        ptx::registers_lower<24>();
        if (threadIdx.x == 0) {
            produce_rows<S>(a, memory, item, blocks);
        }
    } else {
        ptx::registers_raise<240>();
        consume_rows<S>(a, memory, item, blocks);
    }
}
