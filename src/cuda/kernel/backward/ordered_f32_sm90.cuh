/*
 * ordered_f32_sm90.cuh: ordered_sm90.cuh in f32: five products, each of six products of bf16 parts,
 * small ones first. A warp loads, two warpgroups have 64 keys each, which they split themselves:
 *
 *     for each head of the share, each tile of 64 rows that see the keys:
 *         P^T = 2^24 e^(S^T - LSE) | dV += P^T dO | dS^T = P^T (dP^T - delta), to shared memory
 *         dK += dS^T Q | dQ = dS K of the warpgroup's keys; half of the columns for the other one
 *         dP^T, S^T of the next tile | add the other's half, give it to the tile's turn
 *
 * A tile's products are summed afresh and added in f32, since tensor cores cut sums off. There is
 * one tile of Q and one of dO: dO of the next tile comes from the end of dV on, Q from the end of
 * dK on. Turns of tiles, shares and the order of sums are those of ordered_sm90.cuh.
 *
 * Named barriers, g a warpgroup: 3 + g: half of dQ is there for g; 5: shares; 6 + g: warps of g;
 * 8 + g: the turn of g to issue a product. Products of both at once take longer than one after the
 * other.
 */
#pragma once
#include "cuda/kernel/backward/operands_sm90.cuh"
#include "cuda/kernel/backward/run_sm90.cuh"
#include "cuda/kernel/backward/shares_sm90.cuh"
#include "cuda/kernel/load/load.cuh"

/* Barriers of stages are of Q for even, of dO for odd numbers. */
__device__ __forceinline__ uint32_t query_use(uint32_t n)
{
    return 2 * n;
}
__device__ __forceinline__ uint32_t gradient_use(uint32_t n)
{
    return 2 * n + 1;
}

template <class S> __device__ __forceinline__ uint32_t query_tile(const GradMemory<S> &memory)
{
    return memory.base + S::STREAMED_AT;
}
template <class S> __device__ __forceinline__ uint32_t gradient_tile(const GradMemory<S> &memory)
{
    return memory.base + S::STREAMED_AT + S::STEP_BYTES;
}

/* Loads parts of a tile of rows. One thread. */
template <class S>
__device__ __forceinline__ void load_parts(uint32_t to, const attn_tensor_map *map,
                                           uint32_t barrier, int row, int head, int batch)
{
    ptx::mbarrier_arrive_expect(barrier, S::STEP_BYTES);
    for (int part = 0; part < 3; part++) {
        load_tile<S>(to + part * S::STEP_PART, map, barrier, S::STEP, row, head * 3 + part, batch,
                     tma::EVICT_LAST);
    }
}

/* As OrderedLoader. */
template <class S> struct PartsLoader {
    const attn_cuda_backward_params &a;
    const GradMemory<S> &memory;
    int *row_of;

    /* Warpgroups load keys themselves. */
    __device__ __forceinline__ void load_keys(const OrderedItem &) const
    {
        ptx::mbarrier_arrive(memory.keys_full());
    }

    __device__ __forceinline__ void load_rows(const OrderedItem &o, uint32_t n, int head,
                                              int row) const
    {
        const bool first_lane = ptx::thread() == 0;
        const int batch = (int)o.item.sequence.tensor, place = (int)o.item.sequence.q_first + row;
        const uint32_t d_o = gradient_use(n), q = query_use(n);
        memory.stages().await_empty(d_o);
        if (first_lane) {
            load_parts<S>(gradient_tile(memory), &a.d_o_map, memory.stages().full(d_o), place, head,
                          batch);
        }
        ptx::mbarrier_arrive(memory.stages().full(d_o));
        memory.stages().await_empty(q);
        if (first_lane) {
            row_of[n % S::STAGES] = row;
            load_parts<S>(query_tile(memory), &a.q_map, memory.stages().full(q), place, head,
                          batch);
        }
        __syncwarp();
        load_statistics<S>(a, memory, o.item, head, row, n, 1);
        ptx::mbarrier_arrive(memory.stages().full(q));
    }
};

/* A warpgroup. */
template <class S> struct SplitGroup {
    static_assert(S::STEP == 64 && S::D == 64, "accumulators of 64 x 64");
    const attn_cuda_backward_params &a;
    const GradMemory<S> &memory;
    const OrderedItem &o;
    const int *row_of;
    KeySums<S> sums;
    float s[32], dp[32]; /* S^T, dP^T of the tile to come */
    Operand x;           /* of the product that runs */

    __device__ __forceinline__ int group() const
    {
        return ptx::uniform(ptx::thread() / 128) - 1;
    }

    /* Loads this warpgroup's keys and splits them; those beyond the last are 0. */
    __device__ __forceinline__ void load_keys()
    {
        const attn_problem &p = a.grads.problem;
        const attn_sequence &sequence = o.item.sequence;
        const int64_t first = o.item.first + 64 * group();
        const int left = (int)min(sequence.nk - first, (int64_t)64);
        const int64_t b = sequence.tensor, row = sequence.k_first + first, h = o.item.head;
        Fetched<64, S::D, 128> keys, values;
        values.fetch(p.v, attn_at(&p.v, b, row, h, 0), left, a.aligned & ATTN_CUDA_ALIGNED_V);
        keys.fetch(p.k, attn_at(&p.k, b, row, h, 0), left, a.aligned & ATTN_CUDA_ALIGNED_K);
        values.template put<S::FIXED>(memory.fixed(1) + 64 * 128 * group());
        keys.template put<S::FIXED>(memory.fixed(0) + 64 * 128 * group());
        ptx::fence_proxy_async();
        ptx::barrier_sync(6 + group(), 128);
    }

    /* Computes sum = X Y in this warpgroup's turn. */
    template <int ROWS_ALONG_K, int Y_PART>
    __device__ __forceinline__ void multiply(float (&sum)[32], Operand &left, uint32_t y)
    {
        wgmma::hold(left);
        ptx::barrier_sync(8 + group(), 256);
        wgmma::fence();
        issue_split<ROWS_ALONG_K, Y_PART>(sum, left, y);
        ptx::barrier_arrive(9 - group(), 256);
    }

    /* dP^T of a tile. */
    __device__ __forceinline__ void multiply_gradients(uint32_t n)
    {
        const uint32_t use = gradient_use(n);
        load_operand<S>(x, memory.fixed(1), group());
        memory.stages().await_full(use);
        multiply<0, S::STEP_PART>(dp, x, gradient_tile(memory));
        end_product(dp, x, n);
    }

    /* S^T of a tile, which runs on. */
    __device__ __forceinline__ void issue_products(uint32_t n)
    {
        const uint32_t use = query_use(n);
        load_operand<S>(x, memory.fixed(0), group());
        memory.stages().await_full(use);
        multiply<0, S::STEP_PART>(s, x, query_tile(memory));
    }

    /* Makes P^T of S^T, and its parts. */
    __device__ __forceinline__ void raise_scores(uint32_t n)
    {
        const int key = (int)o.item.first + 64 * group(), row = row_of[n % S::STAGES];
        const attn_band band = o.band;
        const bool masked =
            row + S::STEP - 1 + band.from > key || min(row + band.to, band.keys) < key + 64;
        make_probabilities(s, (float)a.grads.problem.scale, memory.statistics(n), band, masked, key,
                           row, x);
    }

    __device__ __forceinline__ void give_back(uint32_t use)
    {
        __syncwarp();
        if (ptx::thread() % 32 == 0) {
            ptx::mbarrier_arrive(memory.stages().empty(use));
        }
    }

    /* The place of this thread's i-th fragment of a half of the columns of dQ. */
    __device__ __forceinline__ uint32_t fragment(int half, int i) const
    {
        const int thread = ptx::thread();
        return memory.sums() + ((half * 4 + thread / 32 % 4) * 4 + i) * 512 + thread % 32 * 16;
    }

    /* Leaves the columns of dQ that are the other warpgroup's. */
    template <int GROUP> __device__ __forceinline__ void leave_half(const float (&dq)[32])
    {
        constexpr int FROM = GROUP == 0 ? 16 : 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *const x = dq + FROM + 4 * i;
            ptx::store_shared_16(fragment(1 - GROUP, i),
                                 {__float_as_uint(x[0]), __float_as_uint(x[1]),
                                  __float_as_uint(x[2]), __float_as_uint(x[3])});
        }
    }

    /* Adds this warpgroup's half to what the other one has left. */
    __device__ __forceinline__ void join_half(const float (&own)[16])
    {
        const int half = group();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t at = fragment(half, i);
            const uint4 x = ptx::load_shared_16(at);
            const float *const y = own + 4 * i;
            ptx::store_shared_16(at, {__float_as_uint(__uint_as_float(x.x) + y[0]),
                                      __float_as_uint(__uint_as_float(x.y) + y[1]),
                                      __float_as_uint(__uint_as_float(x.z) + y[2]),
                                      __float_as_uint(__uint_as_float(x.w) + y[3])});
        }
    }

    /* n: the tile's number. MORE: it is not the item's last one. */
    template <bool MORE> __device__ __forceinline__ void tile(uint32_t n)
    {
        Operand ds;
        float fresh[32], own[16];
        end_product(s, x, n);
        raise_scores(n);
        multiply<1, S::STEP_PART>(fresh, x, gradient_tile(memory));
        make_scores(s, dp, memory.statistics(n) + S::STEP * 4, ds);
        stage_parts<S>(memory.scores() + 64 * 128 * group(), ds);
        end_product(fresh, x, n);
        give_back(gradient_use(n));
        add_fresh(sums.dv, fresh);
        multiply<1, S::STEP_PART>(fresh, ds, query_tile(memory));
        ptx::barrier_sync(6 + group(), 128); /* dS of the warpgroup is there */
        end_product(fresh, ds, n);
        give_back(query_use(n));
        add_fresh(sums.dk, fresh);
        load_scores<S>(x, memory.scores(), group());
        multiply<1, S::FIXED_PART>(fresh, x, memory.fixed(0) + 64 * 128 * group());
        end_product(fresh, x, n);
        ptx::mbarrier_wait(memory.room(n + 1), ((n + 1) / 2 & 1) ^ 1); /* of the tile before */
        if (group() == 0) {
            leave_half<0>(fresh);
        } else {
            leave_half<1>(fresh);
        }
#pragma unroll
        for (int i = 0; i < 16; i++) {
            own[i] = group() == 0 ? fresh[i] : fresh[16 + i];
        }
        ptx::barrier_arrive(4 - group(), 256);
        if constexpr (MORE) {
            multiply_gradients(n + 1);
            issue_products(n + 1);
        }
        join_halves(n, own);
    }

    /* Adds the halves of dQ of tile n up and gives them to the TMA. */
    __device__ __forceinline__ void join_halves(uint32_t n, const float (&own)[16])
    {
        ptx::barrier_sync(3 + group(), 256); /* the other's half is there */
        join_half(own);
        ptx::fence_proxy_async();
        __syncwarp();
        if (ptx::thread() % 32 == 0) {
            ptx::mbarrier_arrive(memory.done(n));
        }
    }

    __device__ __forceinline__ void run()
    {
        sums.clear();
        sums.hold_all();
        if (o.all == 0) {
            return release_keys<S>(memory);
        }
        if (group() == 1 && o.from == 0) {
            ptx::barrier_arrive(8, 256); /* the first turn is the other's */
        }
        uint32_t n = o.from;
        load_keys();
        multiply_gradients(n);
        issue_products(n);
#pragma unroll 1
        for (; n + 1 < o.end(); n++) {
            tile<true>(n);
        }
        tile<false>(n);
        release_keys<S>(memory);
    }

    /* Stores a sum in a gradient from row `first` on, of which `left` rows are there. Returns
     * whether an element is not finite. */
    static __device__ __forceinline__ bool store_keys(const attn_tensor &t, const float (&sum)[32],
                                                      float factor, int batch, int64_t first,
                                                      int head, int left)
    {
        const int row = ptx::thread() / 32 % 4 * 16 + ptx::thread() % 32 / 4,
                  column = ptx::thread() % 4 * 2;
        return t.data != NULL &&
               store_floats(attn_at(&t, batch, first + row, head, column), t.stride[1] * 4, sum,
                            factor, left - row, (int)t.shape[3] - column);
    }

    __device__ __forceinline__ void store()
    {
        float terms[4] = {};
        if (o.shares > 1 && !join_shares<S>(a, o, sums, terms)) {
            return;
        }
        const attn_sequence &sequence = o.item.sequence;
        const attn_gradients &grads = a.grads;
        const int first = (int)o.item.first + 64 * group(), left = (int)sequence.k_rows - first,
                  batch = (int)sequence.tensor, head = (int)o.item.head;
        const int64_t key = sequence.k_first + first;
        const bool bad_keys = store_keys(grads.dk, sums.dk, (float)grads.problem.scale, batch, key,
                                         head, left),
                   bad_values = store_keys(grads.dv, sums.dv, 1, batch, key, head, left),
                   bad = any_of_group(group(), bad_keys || bad_values);
        if (threadIdx.x % 128 == 0 && left > 0) {
            note_block(a, grad_note(grads.problem, a.items, o.item, first), bad);
        }
    }
};

template <class S>
__device__ __forceinline__ void ordered_f32_sm90(const attn_cuda_backward_params &a)
{
    run_ordered<S, SplitGroup<S>, PartsLoader<S>>(a);
}
