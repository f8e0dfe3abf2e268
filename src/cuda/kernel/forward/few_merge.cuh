/*
 * few_merge.cuh: the merge of splits that CTAs of forward_few have left: a launch of its own, which
 * begins before they end. A warp does a row, in the order of few_end.cuh.
 */
#pragma once
#include "cuda/kernel/forward/few_end.cuh"
#include "cuda/kernel/ptx/entry.cuh"

/* Where states and sums of a row's splits lie, for a lane, in registers before they are there. */
struct SplitsAt {
    size_t state, sums;
    uint32_t apart; /* bytes from a split's sums to the next one's */
    int count;
    bool first, second; /* the lane has sums below column 64, and from there on */
};

/* Adds a row's splits, MOST at most, of which those of a GROUP are added first; or with GROUP =
 * MOST sums of groups. The first sums are asked for before the states are there; those of a split
 * without keys were not written. */
template <int GROUP, int MOST, int D>
__device__ __forceinline__ void add_splits(const SplitsAt &at, GatheredRow<D> &row)
{
    constexpr int EARLY = MOST < 16 ? MOST : 16;
    const int lane = threadIdx.x % 32, place = lane % GROUP, count = at.count;
    const float4 state =
        lane < count ? *ptx::from_global<const float4>(at.state) : make_float4(0, 0, 0, 0);
    float2 early[EARLY][D / 64];
    const auto fetch = [&](int i, float2(&x)[D / 64]) {
        const char *from = ptx::from_global<const char>(at.sums) + (uint64_t)at.apart * (uint32_t)i;
#pragma unroll
        for (int j = 0; j < D / 64; j++) {
            x[j] = i < count && (j == 0 ? at.first : at.second) ? *(const float2 *)(from + 256 * j)
                                                                : make_float2(0, 0);
        }
    };
#pragma unroll
    for (int i = 0; i < EARLY; i++) {
        fetch(i, early[i]);
    }
    const bool seen = state.y != 0;
    float base = seen ? state.x : -INFINITY, m = seen ? state.z : -INFINITY;
#pragma unroll
    for (int lanes = 1; lanes < GROUP;
         lanes *= 2) { /* of this split and its group's to its right */
        const float other = __shfl_down_sync(~0u, base, lanes);
        base = place + lanes < GROUP ? fmaxf(base, other) : base;
    }
#pragma unroll
    for (int lanes = 1; lanes < MOST; lanes *= 2) {
        m = fmaxf(m, __shfl_xor_sync(~0u, m, lanes));
    }
    const float before = __shfl_down_sync(~0u, base, 1),
                kept = rebase(place + 1 < GROUP ? before : -INFINITY, base),
                share = seen ? rebase(state.x, base) : 0;
    float most = __shfl_sync(~0u, base, lane - place); /* of the group */
    const float whole = most;
#pragma unroll
    for (int lanes = GROUP; lanes < MOST; lanes *= 2) { /* and of all to its right */
        most = fmaxf(most, __shfl_down_sync(~0u, most, lanes));
    }
    const float others = GROUP < MOST ? __shfl_down_sync(~0u, most, GROUP) : -INFINITY,
                groups_kept = rebase(lane + GROUP < MOST ? others : -INFINITY, most),
                group_share = whole == -INFINITY ? 0 : rebase(whole, most);
    GatheredRow<D> part;
    clear_row(part), clear_row(row);
    row.base = __shfl_sync(~0u, most, 0), row.m = m;
    /* Splits that there are not add nothing. Without branches, since each would wait for a number
     * from another lane. */
    const auto add = [&](int i, const float2(&x)[D / 64]) {
        const float k = __shfl_sync(~0u, kept, i), s = __shfl_sync(~0u, share, i);
        part.l = add_share(part.l, k, __shfl_sync(~0u, state.y, i), s);
#pragma unroll
        for (int j = 0; j < D / 64; j++) {
            const float first = add_share(part.o[2 * j], k, x[j].x, s),
                        second = add_share(part.o[2 * j + 1], k, x[j].y, s);
            part.o[2 * j] = s != 0 ? first : part.o[2 * j];
            part.o[2 * j + 1] = s != 0 ? second : part.o[2 * j + 1];
        }
        if (i % GROUP == 0) {
            const float of_row = __shfl_sync(~0u, groups_kept, i),
                        of_group = __shfl_sync(~0u, group_share, i);
            row.l = add_share(row.l, of_row, part.l, of_group);
#pragma unroll
            for (int j = 0; j < D / 32; j++) {
                const float sum = add_share(row.o[j], of_row, part.o[j], of_group);
                row.o[j] = of_group != 0 ? sum : row.o[j];
            }
            clear_row(part);
        }
    };
    if constexpr (MOST > EARLY) {
#pragma unroll 1
        for (int i = count - 1; i >= EARLY; i--) {
            float2 x[D / 64];
            fetch(i, x);
            add(i, x);
        }
    }
#pragma unroll
    for (int i = EARLY - 1; i >= 0; i--) {
        add(i, early[i]);
    }
}

/* Reads what the end of a row takes of the arguments while the merge waits: the first read of a
 * line of them is slow. ptxas drops reads that nothing depends on, so something does: a comparison
 * that hardly ever holds, and an instruction that does no harm if it holds. */
__device__ __forceinline__ void read_arguments(const attn_cuda_forward_params &a)
{
    const attn_problem &p = a.problem;
    const int64_t all = (int64_t)p.o.data ^ p.o.stride[3] ^ p.o.dtype ^ (int64_t)p.lse.data ^
                        p.lse.stride[3] ^ (int64_t)p.row_max.data ^ (int64_t)p.sinks.data ^ p.dv ^
                        (int64_t)a.parts.sums ^ (int64_t)a.parts.states;
    if (((uint32_t)all ^ (uint32_t)(all >> 32)) == 0x5bd1e995) {
        ptx::begin_next_launch();
    }
}

/* Merges the splits of all rows of O: a warp each, the heads of a query side by side. */
template <int DTYPE, int D>
__device__ __forceinline__ void merge_few(const attn_cuda_codes_params &c)
{
    const attn_cuda_forward_params &a = c.forward;
    const attn_problem &p = a.problem;
    const uint32_t index = blockIdx.x * 4 + threadIdx.x / 32, heads = (uint32_t)p.heads,
                   nq = (uint32_t)p.q.shape[1], group = (uint32_t)p.group;
    if (index / heads >= (uint32_t)p.batch * nq) {
        return;
    }
    const uint32_t head = index % heads, query = index / heads % nq;
    const int64_t sequence = index / heads / nq;
    const uint32_t row = query * group + head % group, rows = (uint32_t)a.parts.rows;
    const int columns = a.parts.columns;
    const int64_t block = (sequence * p.kv_heads + head / group) * a.schedule.blocks + row / rows,
                  parts = a.few.parts, part = block * parts * rows + row % rows;
    const attn_sequence whole = attn_problem_sequence(&p, sequence);
    const int lane = threadIdx.x % 32;
    const SplitsAt at = {
        ptx::opaque_global((const float4 *)a.parts.states + part + (int64_t)lane * rows),
        ptx::opaque_global(a.parts.sums + part * columns + 2 * lane),
        (uint32_t)ptx::opaque((int)rows * columns * 4),
        ptx::opaque((int)parts),
        2 * lane < columns,
        64 + 2 * lane < columns};
    OutputRow w = {whole, (int)head, (int)query, query < whole.nq_used};
    const PlainEnd end(p, w);
    GatheredRow<D> sums;
    read_arguments(a);
    ptx::wait_for_last_launch();
    if (parts < a.schedule.splits) { /* sums of groups */
        if (parts <= 4) {
            add_splits<4, 4>(at, sums);
        } else {
            add_splits<32, 32>(at, sums);
        }
    } else if (parts <= 8) {
        add_splits<ATTN_CUDA_FEW_GROUP, 8>(at, sums);
    } else if (parts <= 16) {
        add_splits<ATTN_CUDA_FEW_GROUP, 16>(at, sums);
    } else {
        add_splits<ATTN_CUDA_FEW_GROUP, 32>(at, sums);
    }
    if (!end.template write<DTYPE>(sums)) {
        finish_gathered<DTYPE>(c, w, sums);
    }
}
