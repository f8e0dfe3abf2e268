/*
 * sums_sm90.cuh: gradients of a bias and of slopes on sm_90a: S^T and dP^T of 128 keys and 64 rows
 * once more, two products, for whatever shares an element. A warp loads, two warpgroups have 64
 * keys each:
 *
 *     ELEMENTS  a bias with queries and keys: an item is 128 keys x 64 rows of it, and adds the
 *               tiles of all sequences and heads that share them
 *     BY_KEYS   a bias without queries: an item is 128 keys of a query head and adds the rows up,
 *               one sum for each key
 *     SLOPES    as BY_KEYS, of -dS |i + off - j|
 *
 * A CTA does one item after the other; the next one's tiles arrive while it stores the sums.
 * attn_backward_.._finish adds what shares an element of the last two (sums_generic.cuh). An
 * element's terms, one of each tile, are added in f32: registers hold no second sum, so
 * backward/plan.c limits their number. A key's terms of a tile are added in f32, then tiles in f64.
 */
#pragma once
#include "cuda/kernel/backward/steps_sm90.cuh"
#include "cuda/kernel/backward/turns_sm90.cuh"
#include <float.h>

/* Two stages of all four tiles: K and V of the second lie where ordered kernels have dS and dQ.
 * Beyond d = 128 there is room for one. */
template <int DTYPE, int D, int STEP>
using SumShape = GradShape<DTYPE, D, STEP, ATTN_GRAD_SUM_STAGES(D), ATTN_GRAD_SUM_ROOM(D, STEP),
                           GRAD_STEPPED_TABLED>;

/* One tile of scores: of a head of the item's sequence. */
struct SumTile {
    GradItem item; /* with the first key */
    int64_t head, row;
};

/* The tiles of an item, in their order. */
template <class S> struct SumWalk {
    const attn_cuda_backward_params &a;
    attn_interval sequences, heads; /* which share the elements; or one head */
    attn_interval rows;             /* of the tiles of each */
    int64_t key, b, h, row;         /* the next tile */

    __device__ __forceinline__ SumWalk(const attn_cuda_backward_params &a_, int64_t index) : a(a_)
    {
        const attn_problem &p = a.grads.problem;
        const attn_tensor &out = a.sum.out;
        if (a.sum.kind == ATTN_CUDA_ELEMENTS) {
            const int64_t across = (out.shape[3] + S::FIXED - 1) / S::FIXED,
                          down = (out.shape[2] + S::STEP - 1) / S::STEP;
            key = index % across * S::FIXED, index /= across;
            rows.lo = index % down * S::STEP, rows.hi = rows.lo + S::STEP, index /= down;
            sequences = grad_sharing(out.shape[0], p.batch, index / out.shape[1]);
            heads = grad_sharing(out.shape[1], p.heads, index % out.shape[1]);
        } else {
            const GradItem item = grad_item(p, a.items, index);
            rows = grad_rows_of_keys(p, item.sequence, item.first, S::FIXED);
            rows.lo = rows.lo / S::STEP * S::STEP;
            key = item.first;
            sequences = {item.sequence.index, item.sequence.index + 1};
            heads = {item.head, item.head + 1};
            if (item.empty || item.sequence.outside) {
                heads.hi = heads.lo;
            }
        }
        b = sequences.lo, h = heads.lo, row = rows.lo;
    }

    /* Moves on by a tile. */
    __device__ __forceinline__ void step()
    {
        row += S::STEP;
        if (row >= rows.hi) {
            row = rows.lo, h++;
        }
        if (h == heads.hi) {
            h = heads.lo, b++;
        }
    }

    /* The next tile with scores; false: there is none. */
    __device__ __forceinline__ bool next(SumTile &tile)
    {
        const attn_problem &p = a.grads.problem;
        while (b < sequences.hi && heads.lo < heads.hi && rows.lo < rows.hi) {
            tile.item.sequence = attn_problem_sequence(&p, b);
            tile.item.first = key, tile.head = h, tile.row = row;
            tile.item.head = h / p.group;
            step();
            const attn_interval hull =
                attn_mask_range(&p, &tile.item.sequence, tile.row, tile.row + S::STEP).hull;
            if (tile.row < tile.item.sequence.nq_used && key < hull.hi &&
                key + S::FIXED > hull.lo) {
                return true;
            }
        }
        return false;
    }
};

/* K or V of a tile. */
template <class S>
__device__ __forceinline__ uint32_t sum_keys(const GradMemory<S> &memory, uint32_t n, int which)
{
    return n % S::STAGES == 0 ? memory.fixed(which) : memory.scores() + which * S::FIXED_BYTES;
}

/* Loads an item's tiles, from number n of the CTA's on. One warp. */
template <class S>
__device__ __forceinline__ void produce_sums(const attn_cuda_backward_params &a,
                                             const GradMemory<S> &memory, SumWalk<S> walk,
                                             uint32_t &n)
{
    SumTile tile;
    for (; walk.next(tile); n++) {
        const attn_sequence &sequence = tile.item.sequence;
        const int batch = (int)sequence.tensor, head = (int)tile.head, kv = (int)tile.item.head,
                  row = (int)(sequence.q_first + tile.row),
                  key = (int)(sequence.k_first + tile.item.first);
        memory.stages().await_empty(n);
        if (ptx::thread() == 0) {
            ptx::mbarrier_arrive_expect(memory.stages().full(n),
                                        2 * S::STEP_BYTES + 2 * S::FIXED_BYTES);
            load_tile<S>(memory.streamed(n, 0), &a.q_map, memory.stages().full(n), S::STEP, row,
                         head, batch, tma::EVICT_LAST);
            load_tile<S>(sum_keys(memory, n, 0), &a.k_map, memory.stages().full(n), S::FIXED, key,
                         kv, batch, tma::EVICT_LAST);
            load_tile<S>(memory.streamed(n, 1), &a.d_o_map, memory.stages().full(n), S::STEP, row,
                         head, batch, tma::EVICT_LAST);
            load_tile<S>(sum_keys(memory, n, 1), &a.v_map, memory.stages().full(n), S::FIXED, key,
                         kv, batch, tma::EVICT_LAST);
        }
        __syncwarp();
        load_statistics<S>(a, memory, tile.item, head, (int)tile.row, n,
                           score_unit<S::BF16>(a, sequence.index, kv));
        ptx::mbarrier_arrive(memory.stages().full(n));
    }
}

/* A thread's sums: of each element of a tile; or of its two keys. */
template <class S> struct ScoreSums {
    static constexpr int N = S::STEP;
    const attn_cuda_backward_params &a;
    float elements[N / 2] = {};
    double keys[2] = {};

    /* Computes dS of a tile in place of P^T, whose sign says what dropout drops. A P of 0 is that
     * of a masked position, say, whatever dP is. Rows from the `end`th of the tile on, as this
     * thread counts them, are not in use, and hold anything. */
    __device__ __forceinline__ void differentiate(float (&s)[N / 2], const float (&dp)[N / 2],
                                                  uint32_t delta, float kept, float back,
                                                  int end) const
    {
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const float2 base = ptx::load_shared_8(delta + 32 * j);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float weight = s[4 * j + i],
                            left = signbit(weight) ? 0 : dp[4 * j + i] * kept;
                s[4 * j + i] = fabsf(weight) < FLT_MIN || 8 * j + i % 2 >= end
                                   ? 0
                                   : fabsf(weight) * (left - (i % 2 ? base.y : base.x)) * back;
            }
        }
    }

    /* far: of element 0, its position minus that of its key. */
    __device__ __forceinline__ void add(const float (&ds)[N / 2], float far)
    {
        const bool slopes = a.sum.kind == ATTN_CUDA_SLOPES;
        if (a.sum.kind == ATTN_CUDA_ELEMENTS) {
#pragma unroll
            for (int e = 0; e < N / 2; e++) {
                elements[e] += ds[e];
            }
            return;
        }
        float part[2] = {};
#pragma unroll
        for (int e = 0; e < N / 2; e++) {
            const float away = far + (float)(e / 4 * 8 + e % 2 - e / 2 % 2 * 8);
            part[e / 2 % 2] += slopes && ds[e] != 0 ? -fabsf(away) * ds[e] : ds[e];
        }
        keys[0] += (double)part[0], keys[1] += (double)part[1];
    }

    /* key, row: of element 0. */
    __device__ __forceinline__ void store_elements(uint32_t index, int64_t key, int64_t row) const
    {
        const attn_tensor &out = a.sum.out;
        const int64_t across = (out.shape[3] + S::FIXED - 1) / S::FIXED,
                      down = (out.shape[2] + N - 1) / N, pair = index / across / down;
        char *const first = attn_at(&out, pair / out.shape[1], pair % out.shape[1], row, key);
        const int64_t down_step = attn_at(&out, 0, 0, 1, 0) - attn_at(&out, 0, 0, 0, 0),
                      step = attn_at(&out, 0, 0, 0, 1) - attn_at(&out, 0, 0, 0, 0);
        const int rows = (int)min(out.shape[2] - row, (int64_t)N),
                  columns = (int)min(out.shape[3] - key, (int64_t)N);
#pragma unroll
        for (int e = 0; e < N / 2; e++) {
            const int k = e / 2 % 2 * 8, r = e / 4 * 8 + e % 2;
            if (r < rows && k < columns) {
                store_at(first + r * down_step + k * step, out.dtype, elements[e]);
            }
        }
    }

    /* key: the first of the thread's two. */
    __device__ __forceinline__ void store_keys(const GradItem &item, int64_t key) const
    {
        const attn_problem &p = a.grads.problem;
        const int64_t place = (item.sequence.tensor * p.heads + item.head) * p.k.shape[1];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            double sum = keys[i];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            if (threadIdx.x % 4 == 0 && key + 8 * i < item.sequence.k_rows) {
                a.sum.partial[place + item.sequence.k_first + key + 8 * i] = sum;
            }
        }
    }
};

/* Computes and stores an item's sums. Both warpgroups. */
template <class S>
__device__ __forceinline__ void consume_sums(const attn_cuda_backward_params &a,
                                             const GradMemory<S> &memory, SumWalk<S> walk,
                                             uint32_t index, uint32_t &n)
{
    constexpr int N = S::STEP;
    const int group = ptx::uniform(threadIdx.x / 128) - 1, lane = threadIdx.x % 32,
              first = (int)walk.key + 64 * group,
              key = first + threadIdx.x / 32 % 4 * 16 + lane / 4;
    const int64_t row = walk.rows.lo + lane % 4 * 2;
    ScoreSums<S> sums = {a};
    SumTile tile;
    for (; walk.next(tile); n++) {
        const attn_sequence &sequence = tile.item.sequence;
        const float unit = score_unit<S::BF16>(a, sequence.index, tile.item.head),
                    back = S::BF16 ? 1 : power_of_2(-LIFT) / unit;
        const attn_band band = attn_mask_band(&a.grads.problem, &sequence);
        const int at = (int)tile.row;
        const bool masked =
            at + N - 1 + band.from > first || min(at + band.to, band.keys) < first + 64;
        StepTile steps = {a,    sequence, (int)tile.head, key, at + lane % 4 * 2, memory.tables(),
                          band, masked};
        const uint32_t statistics = memory.statistics(n) + lane % 4 * 8;
        float s[N / 2], dp[N / 2];
        steps.fetch<N, READ_EITHER>();
        memory.stages().await_full(n);
        wgmma::fence();
        issue_scores<S, N>(s, sum_keys(memory, n, 0) + 64 * 128 * group, memory.streamed(n, 0));
        issue_scores<S, N>(dp, sum_keys(memory, n, 1) + 64 * 128 * group, memory.streamed(n, 1));
        steps.find_dropped(steps.drop);
        wgmma::wait<0>();
        wgmma::hold(s);
        wgmma::hold(dp);
        steps.weigh<S::BF16>(s, statistics);
        sums.differentiate(s, dp, statistics + N * 4, a.kept * unit, back,
                           band.rows - at - lane % 4 * 2);
        sums.add(s, (float)(at + lane % 4 * 2 + sequence.diagonal - key));
        __syncwarp();
        if (lane == 0) {
            ptx::mbarrier_arrive(memory.stages().empty(n));
        }
    }
    if (a.sum.kind == ATTN_CUDA_ELEMENTS) {
        sums.store_elements(index, key, row);
    } else {
        const GradItem item = grad_item(a.grads.problem, a.items, index);
        if (!item.empty) {
            sums.store_keys(item, key);
        }
    }
}

/* Calls `each` with the items of this CTA. */
template <class Each>
__device__ __forceinline__ void for_each_item(const attn_cuda_backward_params &a, const Each &each)
{
#pragma unroll 1
    for (uint32_t index = blockIdx.x; index < (uint32_t)a.items.count; index += gridDim.x) {
        each(index);
    }
}

template <class S> __device__ __forceinline__ void sums_sm90(const attn_cuda_backward_params &a)
{
    const GradMemory<S> memory = grad_memory<S>();
    if (threadIdx.x == 0) {
        memory.init_barriers(1 + 32);
    }
    __syncthreads();
    uint32_t n = 0;
    if (ptx::uniform(threadIdx.x / 128) == 0) {
        ptx::registers_lower<72>();
        for_each_item(a, [&](uint32_t index) {
            if (threadIdx.x < 32) {
                produce_sums<S>(a, memory, SumWalk<S>(a, index), n);
            }
        });
    } else {
        ptx::registers_raise<216>();
        for_each_item(
            a, [&](uint32_t index) { consume_sums<S>(a, memory, SumWalk<S>(a, index), index, n); });
    }
}
