/*
 * elements_sm90.cuh: the gradient of a bias with queries and keys on sm_90a: S and dP of 128 rows
 * and 128 keys once more, two products, for all sequences and heads that share the elements. A warp
 * loads, two warpgroups have 64 rows each:
 *
 *     issue S = Q K^T | issue dP = dO V^T | P = 2^(c S + bias log2 e - LSE), while dP runs
 *     sums += P (dP - delta), of each element
 *
 * A row of accumulators is a row of scores here, so LSE and delta are registers, a bias is read as
 * it lies, and a call of Philox is a thread's own (core/dropout.h). A CTA does one item after the
 * other; the next one's tiles arrive meanwhile.
 *
 * Tiles come in pairs, Q and K, then dO and V, through a ring of S::PAIRS; pair n has number 2 n or
 * 2 n + 1 of tile n. With the first one comes a post: what tile it is.
 *
 * Not here: masks, softcap, ALiBi, and biases that are read element by element (sums_sm90.cuh).
 */
#pragma once
#include "cuda/kernel/backward/element_rows_sm90.cuh"
#include "cuda/kernel/backward/sums_sm90.cuh"

/* Addresses in shared memory. n: of a tile; m: of a pair. */
template <class S> struct ElementMemory {
    uint32_t base; /* aligned to 1024 bytes */

    __device__ __forceinline__ uint32_t tile(uint32_t m, int which) const
    {
        return base + (m % S::PAIRS * 2 + which) * S::TILE_BYTES;
    }
    __device__ __forceinline__ StageBarriers<S::PAIRS> pairs() const
    {
        return {base + S::BARRIERS_AT};
    }
    /* LSE in exponents of 2, then delta, of 128 rows. */
    __device__ __forceinline__ uint32_t statistics(uint32_t n) const
    {
        return base + S::STATISTICS_AT + n % 2 * 2 * S::STEP * 4;
    }
    /* The band; sequence, head, whether there is a tile; with the second pair, whether its item has
     * another one. */
    __device__ __forceinline__ uint32_t post(uint32_t n) const
    {
        return base + S::POSTS_AT + n % 2 * 32;
    }
    /* A warp's 16 rows of the bias. */
    __device__ __forceinline__ uint32_t table(int warp) const
    {
        return base + S::TABLES_AT + warp * S::TABLE_BYTES;
    }
};

/* ---- items ----------------------------------------------------------------------------------- */

/* The tiles of an item, in their order. */
template <class S> struct ElementWalk {
    const attn_cuda_backward_params &a;
    ElementBlock block; /* b, h: of the next tile */
    int heads_lo, heads_hi, batch_hi;

    __device__ __forceinline__ ElementWalk(const attn_cuda_backward_params &a_, uint32_t index)
        : a(a_), block(a_.sum.out, index)
    {
        const attn_problem &p = a.grads.problem;
        const attn_interval heads = grad_sharing(a.sum.out.shape[1], p.heads, block.h);
        heads_lo = (int)heads.lo, heads_hi = (int)heads.hi;
        batch_hi = a.sum.out.shape[0] == 1 ? (int)p.batch : block.b + 1;
    }

    /* The next tile with scores; false: there is none. */
    __device__ __forceinline__ bool next(SumTile &tile)
    {
        const attn_problem &p = a.grads.problem;
        while (block.b < batch_hi) {
            tile.item.sequence = attn_problem_sequence(&p, block.b);
            tile.item.first = block.key, tile.row = block.row, tile.head = block.h;
            tile.item.head = divide(block.h, p.group);
            if (++block.h == heads_hi) {
                block.h = heads_lo, block.b++;
            }
            const attn_interval hull =
                attn_mask_range(&p, &tile.item.sequence, block.row, block.row + S::STEP).hull;
            if (block.row < tile.item.sequence.nq_used && block.key < hull.hi &&
                block.key + S::FIXED > hull.lo) {
                return true;
            }
        }
        return false;
    }
};

/* ---- the loader ------------------------------------------------------------------------------ */

/* Loads pair m, if there is one. All lanes. */
template <class S>
__device__ __forceinline__ void load_pair(const attn_cuda_backward_params &a,
                                          const ElementMemory<S> &memory, uint32_t m, bool there,
                                          const SumTile &tile)
{
    const attn_sequence &sequence = tile.item.sequence;
    const bool second = m % 2 != 0;
    const uint32_t full = memory.pairs().full(m);
    if (ptx::thread() == 0 && there) {
        const int batch = (int)sequence.tensor;
        ptx::mbarrier_arrive_expect(full, 2 * S::TILE_BYTES);
        load_tile<S>(memory.tile(m, 0), second ? &a.d_o_map : &a.q_map, full, S::STEP,
                     (int)(sequence.q_first + tile.row), (int)tile.head, batch, tma::EVICT_LAST);
        load_tile<S>(memory.tile(m, 1), second ? &a.v_map : &a.k_map, full, S::FIXED,
                     (int)(sequence.k_first + tile.item.first), (int)tile.item.head, batch,
                     tma::EVICT_LAST);
    } else if (ptx::thread() == 0) {
        ptx::mbarrier_arrive(full);
    }
    __syncwarp();
}

/* Loads LSE and delta; a row that is not there has P = 0. All lanes. */
template <class S>
__device__ __forceinline__ void load_element_rows(const attn_cuda_backward_params &a, uint32_t to,
                                                  const SumTile &tile)
{
    const int64_t place = grad_row_place(a.grads.problem, tile.item.sequence, tile.head) + tile.row,
                  left = tile.item.sequence.nq_used - tile.row;
#pragma unroll
    for (int r = threadIdx.x % 32; r < S::STEP; r += 32) {
        const bool inside = r < left;
        const float lse = inside ? ((const float *)a.lse)[place + r] : INFINITY;
        ptx::store_shared_4(to + 4 * r, lifted<true>(lse));
        ptx::store_shared_4(to + 4 * (S::STEP + r),
                            inside ? ((const float *)a.delta)[place + r] : 0);
    }
}

/* Loads an item's tiles, from number n of the CTA's on; a post alone if it has none. One warp. */
template <class S>
__device__ __forceinline__ void load_elements(const attn_cuda_backward_params &a,
                                              const ElementMemory<S> &memory, ElementWalk<S> walk,
                                              uint32_t &n)
{
    SumTile tile;
    const bool any = walk.next(tile);
    bool more;
    do {
        const uint32_t m = 2 * n, post = memory.post(n);
        memory.pairs().await_empty(m);
        if (ptx::thread() == 0) {
            const attn_band band =
                any ? attn_mask_band(&a.grads.problem, &tile.item.sequence) : attn_band{};
            ptx::store_shared_16(post, {(uint32_t)band.from, (uint32_t)band.to, (uint32_t)band.rows,
                                        (uint32_t)band.keys});
            ptx::store_shared_8(post + 16, (uint32_t)tile.item.sequence.index, (uint32_t)tile.head);
            ptx::store_shared_4(post + 24, __uint_as_float(any));
        }
        load_pair<S>(a, memory, m, any, tile);
        if (any) {
            load_element_rows<S>(a, memory.statistics(n), tile);
        }
        ptx::mbarrier_arrive(memory.pairs().full(m));
        memory.pairs().await_empty(m + 1);
        load_pair<S>(a, memory, m + 1, any, tile);
        more = any && walk.next(tile);
        if (ptx::thread() == 0) {
            ptx::store_shared_4(post + 28, __uint_as_float(more));
        }
        ptx::mbarrier_arrive(memory.pairs().full(m + 1));
        n++;
    } while (more);
}

/* ---- the warpgroups -------------------------------------------------------------------------- */

/* Computes and stores the items of a CTA. Both warpgroups. */
template <class S>
__device__ __forceinline__ void consume_elements(const attn_cuda_backward_params &a,
                                                 const ElementMemory<S> &memory)
{
    constexpr int N = S::FIXED / 2;
    const int group = ptx::uniform(threadIdx.x / 128) - 1, warp = threadIdx.x / 32 - 4,
              lane = threadIdx.x % 32;
    const bool drops = a.grads.problem.dropout.on;
    ElementRows<S> rows = {a, memory.table(warp)};
    uint32_t n = 0, index = blockIdx.x;
    rows.fetch(index);
#pragma unroll 1
    for (; index < (uint32_t)a.items.count; index += gridDim.x) {
        const ElementBlock block(a.sum.out, index);
        const int first = (int)block.row + 16 * warp, row = first + lane / 4,
                  key = (int)block.key + lane % 4 * 2;
#pragma unroll
        for (int e = 0; e < N; e++) {
            rows.sums[e] = 0;
        }
        wgmma::hold(rows.sums);
        ptx::copy_async_wait<0>();
        __syncwarp();
        const bool hides = rows.hides();
        bool more;
#pragma unroll 1
        do {
            const uint32_t m = 2 * n, post = memory.post(n);
            float s[N], dp[N];
            memory.pairs().await_full(m);
            const uint4 of = ptx::load_shared_16(post);
            if (ptx::load_shared_4(post + 24) == 0) {
                memory.pairs().await_full(m + 1);
                __syncwarp();
                if (lane == 0) {
                    ptx::mbarrier_arrive(memory.pairs().empty(m));
                    ptx::mbarrier_arrive(memory.pairs().empty(m + 1));
                }
                n++;
                break;
            }
            wgmma::fence();
            issue_scores<S, S::FIXED>(s, memory.tile(m, 0) + 64 * 128 * group, memory.tile(m, 1));
            memory.pairs().await_full(m + 1);
            wgmma::fence();
            issue_scores<S, S::FIXED>(dp, memory.tile(m + 1, 0) + 64 * 128 * group,
                                      memory.tile(m + 1, 1));
            more = ptx::load_shared_4(post + 28) != 0;
            const attn_band band = {(int)of.x, (int)of.y, (int)of.z, (int)of.w};
            const uint32_t statistics = memory.statistics(n) + (16 * warp + lane / 4) * 4;
            const float2 lse = {__uint_as_float(ptx::load_shared_4(statistics)),
                                __uint_as_float(ptx::load_shared_4(statistics + 32))},
                         delta = {
                             __uint_as_float(ptx::load_shared_4(statistics + S::STEP * 4)),
                             __uint_as_float(ptx::load_shared_4(statistics + S::STEP * 4 + 32))};
            uint32_t kept[2] = {};
            if (drops) {
                rows.find_kept(kept, (int)ptx::load_shared_4(post + 16),
                               (int)ptx::load_shared_4(post + 20), row, key);
            }
            const bool whole = first + 16 <= band.rows && first + 15 + band.from <= block.key &&
                               block.key + S::FIXED <= min(first + band.to, band.keys);
            wgmma::wait<1>();
            wgmma::hold(s);
            __syncwarp();
            if (lane == 0) {
                ptx::mbarrier_arrive(memory.pairs().empty(m));
            }
            if (!whole) {
                rows.template weigh<HIDE_ANY>(s, lse, band, row, key);
            } else if (hides) {
                rows.template weigh<HIDE_BIAS>(s, lse, band, row, key);
            } else {
                rows.template weigh<HIDE_NONE>(s, lse, band, row, key);
            }
            wgmma::wait<0>();
            wgmma::hold(dp);
            if (lane == 0) {
                ptx::mbarrier_arrive(memory.pairs().empty(m + 1));
            }
            if (drops) {
                rows.template add<true>(s, dp, delta, kept);
            } else {
                rows.template add<false>(s, dp, delta, kept);
            }
            n++;
        } while (more);
        __syncwarp(); /* all lanes have read the bias */
        if (index + gridDim.x < (uint32_t)a.items.count) {
            rows.fetch(index + gridDim.x);
        }
        rows.store((uint32_t)ptx::opaque((int)index));
    }
}

template <class S> __device__ __forceinline__ void elements_sm90(const attn_cuda_backward_params &a)
{
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32_t start = ptx::shared_address(shared);
    const ElementMemory<S> memory = {start + (-start & 1023)};
    if (threadIdx.x == 0) {
        memory.pairs().init(1 + 32, CONSUMER_WARPS);
        ptx::fence_mbarrier_init();
    }
    __syncthreads();
    if (ptx::uniform(threadIdx.x / 128) == 0) {
        static_assert(56 * 128 + 224 * 256 <= 168 * 384, "registers that the launch has");
        ptx::registers_lower<56>();
        if (threadIdx.x < 32) {
            uint32_t n = 0;
            for_each_item(a, [&](uint32_t index) {
                load_elements<S>(a, memory, ElementWalk<S>(a, index), n);
            });
        }
    } else {
        ptx::registers_raise<224>();
        consume_elements<S>(a, memory);
    }
}
