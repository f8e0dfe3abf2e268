/*
 * round_sm90.cuh: dQ from the sums of ordered kernels: a CTA scales, rounds and stores a tile, or
 * zeros, if no key has added to it.
 */
#pragma once
#include "cuda/kernel/backward/turns_sm90.cuh"

/* A fragment of 4 sums is of two rows, 8 apart, and two columns. */
template <class S> __device__ __forceinline__ void round_sm90(const attn_cuda_backward_params &a)
{
    const attn_gradients &grads = a.grads;
    const attn_problem &p = grads.problem;
    __shared__ GradItem item;
    share_item(item, a, blockIdx.x);
    if (item.empty) {
        return;
    }
    constexpr int EACH = S::STEP * S::D / (256 * 4); /* fragments of a thread */
    const int group = threadIdx.x / 128, lane = threadIdx.x % 32,
              row = (S::STEP == 128 ? 64 * group : 0) + threadIdx.x / 32 % 4 * 16 + lane / 4,
              column = S::STEP == 64 ? 8 * EACH * group : 0;
    const int64_t place =
                      grad_tile_place(p, item, item.head, S::STEP, a.slots) + item.first / S::STEP,
                  left = item.sequence.nq - item.first;
    const float factor = a.turns[S::WIDE ? 2 * place : place] > 0 ? (float)p.scale : 0;
    /* wide: fours of fragments of 8 warps */
    constexpr int SIDE = S::WIDE ? 4 : EACH;
    const float4 *sums =
        (const float4 *)(a.sums + place * (S::STEP * S::D)) + threadIdx.x / 32 * SIDE * 32 + lane;
    float back = S::OUTSIDE ? a.kept : S::DOWN;
    bool bad = false;
    if constexpr (!S::BF16) {
        back = power_of_2(-score_exponent(a, item.sequence.index, item.head / p.group));
        bad = has_faint_rows(a, item, row);
    }
    float4 x[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const float4 none = {0, 0, 0, 0};
        x[i] = factor == 0 ? none : sums[(i / SIDE * 8 * SIDE + i % SIDE) * 32];
    }
#pragma unroll
    for (int i = 0; i < 2 * EACH; i += 4) {
        const int half = i / EACH, r = row + 8 * half;
        float values[4][2];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float4 &v = x[i % EACH + j];
            values[j][0] = (half ? v.z : v.x) * back * factor;
            values[j][1] = (half ? v.w : v.y) * back * factor;
        }
        char *const to = attn_at(&grads.dq, item.sequence.tensor,
                                 item.sequence.q_first + item.first + r, item.head, 0);
        bad |= store_row(grads.dq, to, column + i % EACH * 8, values, r < left);
    }
    bad = S::STEP == 64 ? __syncthreads_or(bad) : any_of_group(group, bad);
    const int64_t first = item.first + (S::STEP == 128 ? 64 * group : 0);
    if (threadIdx.x % (S::STEP == 64 ? 256 : 128) == 0 && first < item.sequence.nq) {
        a.bad[grad_note(p, a.items, item, first)] = bad;
    }
}
