/*
 * hidden_sm90.cuh: keys that a mask hides from all rows of an item (params.hides_keys). The tile
 * loop knows nothing of them. Before it their K and V are cleared in shared memory: their scores
 * are 0, and dS times K, which they add to dQ, is 0 too. After it their rows of dK and dV become 0.
 * P of a hidden key is 2^-LSE of the row: where LSE is so low that dS overflows, dQ is not finite,
 * and backward_generic does the block again.
 */
#pragma once
#include "cuda/kernel/backward/shape_sm90.cuh"

/* Whether the mask hides a key. The index is clamped: lengths may lie in the GPU's memory. */
__device__ __forceinline__ bool hides_key(const attn_cuda_backward_params &a, const GradItem &item,
                                          int64_t key)
{
    const attn_tensor &mask = a.grads.problem.mask;
    return *attn_at_broadcast(&mask, item.sequence.index, item.head, 0,
                              min(key, mask.shape[3] - 1)) == 0;
}

/* Clears K and V of hidden keys in shared memory. Both warpgroups, which wait for each other. */
template <class S>
__device__ __forceinline__ void clear_hidden(const attn_cuda_backward_params &a,
                                             const GradMemory<S> &memory, const GradItem &item)
{
    constexpr int LANES = 256 / S::FIXED, PIECES = 8 / LANES; /* of a chunk of a row */
    const int thread = ptx::thread() - 128, row = thread / LANES, lane = thread % LANES;
    if (hides_key(a, item, item.first + row)) {
        for (int chunk = 0; chunk < 2 * (S::D / 64); chunk++) { /* of K, then of V */
            const uint32_t to = memory.fixed(0) + (chunk * S::FIXED + row) * 128 + lane * 16;
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                ptx::store_shared_16(to + i * LANES * 16, {});
            }
        }
        ptx::fence_proxy_async();
    }
    if constexpr (S::WIDE) { /* K of the pair's other half */
        if (hides_key(a, item, (item.first ^ S::FIXED) + row)) {
            for (int chunk = 0; chunk < 2; chunk++) {
                const uint32_t to =
                    memory.other_keys() + (chunk * S::FIXED + row) * 128 + lane * 16;
#pragma unroll
                for (int i = 0; i < PIECES; i++) {
                    ptx::store_shared_16(to + i * LANES * 16, {});
                }
            }
            ptx::fence_proxy_async();
        }
    }
    ptx::barrier_sync(5, 256);
}

/* Makes sums of hidden keys 0, and their terms larger than any bound (range_sm90.cuh). key: of the
 * thread's first sum; others are of the key 8 behind it. */
template <int N>
__device__ __forceinline__ void drop_hidden(const attn_cuda_backward_params &a,
                                            const GradItem &item, int64_t key, float (&dk)[N],
                                            float (&dv)[N], float (&terms)[4])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (hides_key(a, item, key + 8 * half)) {
            terms[half] = terms[2 + half] = INFINITY;
#pragma unroll
            for (int i = 2 * half; i < N; i += 4) {
                dk[i] = dk[i + 1] = dv[i] = dv[i + 1] = 0;
            }
        }
    }
}
