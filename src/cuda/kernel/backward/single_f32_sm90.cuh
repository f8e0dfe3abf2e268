/*
 * single_f32_sm90.cuh: gradients of f32 on sm_90a where a head has 64 rows and 64 keys at most, all
 * in one launch, since others would take longer than the work: 256 threads split all tensors of a
 * head; the first warpgroup has dV and dK, the second one dQ. Sums, and so bits, are those of
 * ordered_f32_sm90.cuh and its neighbours. Lengths, groups of heads and rows that are not aligned
 * are left to these (backward/split.c).
 */
#pragma once
#include "cuda/kernel/backward/operands_sm90.cuh"
#include "cuda/kernel/load/load.cuh"

/* Shared memory: K, V, Q, dO, dS^T in parts; LSE and delta. */
struct SingleShape {
    static constexpr int D = 64, FIXED = 64, PART = 64 * 64 * 2, FIXED_PART = PART,
                         SCORES_PART = PART, TILE_BYTES = 3 * PART;
    static constexpr float DOWN = PartsShape<64, 64>::DOWN;
    static_assert(5 * TILE_BYTES + 2 * 64 * 4 + ATTN_SM90_ALIGN == ATTN_GRAD_SINGLE_BYTES,
                  "shape.h");
};
enum SingleTile { SINGLE_K, SINGLE_V, SINGLE_Q, SINGLE_D_O, SINGLE_SCORES, SINGLE_STATISTICS };

/* A CTA's head. */
struct SingleHead {
    uint32_t base; /* of shared memory */
    attn_sequence sequence;
    int head;

    __device__ __forceinline__ uint32_t place(SingleTile tile) const
    {
        return base + tile * SingleShape::TILE_BYTES;
    }
    /* Fetches this thread's part of a tensor. */
    __device__ __forceinline__ void fetch(Fetched<64, 64, 256> &x, const attn_tensor &t,
                                          int64_t rows) const
    {
        x.fetch(t, attn_at(&t, sequence.tensor, 0, head, 0), (int)rows, true);
    }
};

/* Puts LSE and delta = dO.O - dLSE of the rows in shared memory, and in their arrays. */
__device__ __forceinline__ void single_statistics(const attn_cuda_backward_params &a,
                                                  const SingleHead &h,
                                                  const Fetched<64, 64, 256> &d_o,
                                                  const Fetched<64, 64, 256> &o)
{
    const attn_problem &p = a.grads.problem;
    const Fours<64, 256> fours(threadIdx.x);
    const int64_t first = ((int64_t)h.sequence.tensor * p.heads + h.head) * p.q.shape[1];
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int row = fours.row + n * fours.STEP;
        float sum = dot_four(as_floats(d_o.x[n]), as_floats(o.x[n]));
        sum = add_lanes<16>(sum);
        if (fours.column == 0) {
            float lse = INFINITY, delta = 0;
            if (row < h.sequence.nq) {
                row_statistics(a, h.sequence.tensor, row, h.head, sum, lse, delta);
                ((float *)a.lse)[first + row] = lse, ((float *)a.delta)[first + row] = delta;
            }
            ptx::store_shared_4(h.place(SINGLE_STATISTICS) + 4 * row, lse);
            ptx::store_shared_4(h.place(SINGLE_STATISTICS) + 4 * (64 + row), delta);
        }
    }
}

/* Loads and splits all tensors of the head. */
__device__ __forceinline__ void single_load(const attn_cuda_backward_params &a, const SingleHead &h)
{
    const attn_problem &p = a.grads.problem;
    Fetched<64, 64, 256> k, v, q, d_o, o;
    h.fetch(v, p.v, h.sequence.nk);
    h.fetch(d_o, a.grads.d_o, h.sequence.nq);
    h.fetch(k, p.k, h.sequence.nk);
    h.fetch(q, p.q, h.sequence.nq);
    h.fetch(o, p.o, h.sequence.nq);
    v.put<64>(h.place(SINGLE_V));
    d_o.put<64>(h.place(SINGLE_D_O));
    k.put<64>(h.place(SINGLE_K));
    q.put<64>(h.place(SINGLE_Q));
    single_statistics(a, h, d_o, o);
    ptx::fence_proxy_async();
    __syncthreads();
}

/* Scales and stores a sum that was fresh. Returns whether the warpgroup notes it. */
__device__ __forceinline__ bool single_store(const attn_tensor &t, float (&fresh)[32], float factor,
                                             const SingleHead &h, int64_t rows)
{
#pragma unroll
    for (int i = 0; i < 32; i++) {
        fresh[i] = (0 + fresh[i]) * SingleShape::DOWN; /* no negative 0, as in sums of tiles */
    }
    return store_sums<SingleShape>(t, fresh, factor, (int)h.sequence.tensor, 0, h.head, (int)rows);
}

/* dV and dK, and dS^T for the other warpgroup. */
__device__ __forceinline__ void single_keys(const attn_cuda_backward_params &a, const SingleHead &h)
{
    const attn_problem &p = a.grads.problem;
    const attn_band band = attn_mask_band(&p, &h.sequence);
    const uint32_t lse = h.place(SINGLE_STATISTICS);
    Operand x, y;
    float s[32], dp[32], fresh[32];
    load_operand<SingleShape>(x, h.place(SINGLE_V), 0);
    load_operand<SingleShape>(y, h.place(SINGLE_K), 0);
    begin_product(x);
    begin_product(y);
    issue_split<0, SingleShape::PART>(dp, x, h.place(SINGLE_D_O));
    issue_split<0, SingleShape::PART>(s, y, h.place(SINGLE_Q));
    end_product(dp, x, h.head);
    end_product(s, y, h.head);
    const bool masked = 63 + band.from > 0 || min(band.to, band.keys) < 64;
    make_probabilities(s, (float)p.scale, lse, band, masked, 0, 0, x);
    begin_product(x);
    issue_split<1, SingleShape::PART>(fresh, x, h.place(SINGLE_D_O));
    make_scores(s, dp, lse + 64 * 4, y);
    stage_parts<SingleShape>(h.place(SINGLE_SCORES), y);
    ptx::barrier_arrive(3, 256);
    end_product(fresh, x, h.head);
    bool bad = single_store(a.grads.dv, fresh, 1, h, h.sequence.nk);
    begin_product(y);
    issue_split<1, SingleShape::PART>(fresh, y, h.place(SINGLE_Q));
    end_product(fresh, y, h.head);
    bad |= single_store(a.grads.dk, fresh, (float)p.scale, h, h.sequence.nk);
    bad = any_of_group(0, bad);
    if (threadIdx.x == 0) {
        a.bad[blockIdx.x] = bad;
    }
}

/* dQ. */
__device__ __forceinline__ void single_rows(const attn_cuda_backward_params &a, const SingleHead &h)
{
    Operand x;
    float fresh[32];
    ptx::barrier_sync(3, 256); /* dS^T is there */
    load_scores<SingleShape>(x, h.place(SINGLE_SCORES), 0);
    begin_product(x);
    issue_split<1, SingleShape::PART>(fresh, x, h.place(SINGLE_K));
    end_product(fresh, x, h.head);
    const bool bad = any_of_group(
        1, single_store(a.grads.dq, fresh, (float)a.grads.problem.scale, h, h.sequence.nq));
    if (threadIdx.x == 128) {
        a.bad_rows[blockIdx.x] = bad;
    }
}

/* A CTA for each head of each sequence. */
__device__ __forceinline__ void single_f32_sm90(const attn_cuda_backward_params &a)
{
    extern __shared__ unsigned char shared[];
    const attn_problem &p = a.grads.problem;
    const uint32_t start = ptx::shared_address(shared), heads = (uint32_t)p.heads;
    const SingleHead h = {start + (-start & 1023),
                          attn_problem_whole_sequence(&p, blockIdx.x / heads),
                          (int)(blockIdx.x % heads)};
    single_load(a, h);
    if (ptx::uniform(threadIdx.x / 128) == 0) {
        single_keys(a, h);
    } else {
        single_rows(a, h);
    }
}
