/*
 * loader_sm90.cuh: the warp that loads tiles for ordered_sm90.cuh: K and V of an item, Q and dO of
 * its tiles with LSE and delta.
 */
#pragma once
#include "cuda/kernel/backward/run_sm90.cuh"
#include "cuda/kernel/rows/score.cuh"

/* Loads tiles for run_ordered. One warp. */
template <class S> struct OrderedLoader {
    const attn_cuda_backward_params &a;
    const GradMemory<S> &memory;
    int *row_of;

    /* K and V of an item. Lane 0. */
    __device__ __forceinline__ void load_keys(const OrderedItem &o) const
    {
        const uint32_t full = memory.keys_full();
        const int key = (int)(o.item.sequence.k_first + o.item.first), kv = (int)o.item.head,
                  batch = (int)o.item.sequence.tensor;
        ptx::mbarrier_arrive_expect(full, 2 * S::FIXED_BYTES);
        load_tile<S>(memory.fixed(0), &a.k_map, full, S::FIXED, key, kv, batch, tma::EVICT_FIRST);
        load_tile<S>(memory.fixed(1), &a.v_map, full, S::FIXED, key, kv, batch, tma::EVICT_FIRST);
    }

    /* Q and dO of a tile, LSE and delta. */
    __device__ __forceinline__ void load_rows(const OrderedItem &o, uint32_t n, int head,
                                              int row) const
    {
        const uint32_t full = memory.stages().full(n);
        memory.stages().await_empty(n);
        if (ptx::thread() == 0) {
            const int place = (int)o.item.sequence.q_first + row,
                      batch = (int)o.item.sequence.tensor;
            row_of[n % S::STAGES] = row;
            if constexpr (S::DROPPED) {
                const uint64_t stream = attn_dropout_stream(
                    &a.grads.problem.dropout, o.item.sequence.index, a.grads.problem.heads, head);
                row_of[S::STAGES + n % S::STAGES] = (int)(uint32_t)stream;
                row_of[2 * S::STAGES + n % S::STAGES] = (int)(uint32_t)(stream >> 32);
            } else if constexpr (S::HAS_HEADS) {
                row_of[S::STAGES + n % S::STAGES] = head;
            }
            ptx::mbarrier_arrive_expect(full, (S::APART ? 1 : 2) * S::STEP_BYTES);
            load_tile<S>(memory.streamed(n, 0), &a.q_map, full, S::STEP, place, head, batch,
                         tma::EVICT_LAST);
            if constexpr (!S::APART) {
                load_tile<S>(memory.streamed(n, 1), &a.d_o_map, full, S::STEP, place, head, batch,
                             tma::EVICT_LAST);
            }
        }
        __syncwarp();
        if constexpr (S::HAS_SLOPES) {
            load_slope(o, n);
        }
        load_statistics<S>(a, memory, o.item, head, row, n, o.unit);
        ptx::mbarrier_arrive(full);
        if constexpr (S::APART) {
            load_d_o(o, n);
        }
        if constexpr (S::TILED) {
            load_table(o, n);
        }
    }
    /* The slope of the tile's head, in units of exponents of 2. Warpgroups would wait for it, since
     * acquiring a turn empties the L1 cache. The head is read back: registers are few. */
    __device__ __forceinline__ void load_slope(const OrderedItem &o, uint32_t n) const
    {
        const attn_tensor &alibi = a.grads.problem.alibi;
        if (alibi.data != NULL && ptx::thread() == 0) {
            const int head = row_of[S::STAGES + n % S::STAGES];
            const float slope = load_real<float>(
                attn_at_broadcast(&alibi, o.item.sequence.index, head, 0, 0), alibi.dtype);
            row_of[2 * S::STAGES + n % S::STAGES] =
                (int)__float_as_uint(slope * -1.4426950408889634f);
        }
    }
    /* The tile of a mask or bias. */
    __device__ __forceinline__ void load_table(const OrderedItem &o, uint32_t n) const
    {
        if (ptx::thread() == 0) {
            const GradMemory<S> near = {(uint32_t)ptx::opaque((int)memory.base)};
            const uint32_t full = near.table_stage().full(n);
            near.table_stage().await_empty(n);
            const int row = row_of[n % S::STAGES],
                      head = a.table_heads ? row_of[S::STAGES + n % S::STAGES] : 0,
                      batch = a.table_batches ? (int)o.item.sequence.index : 0;
            const uint64_t hint = a.table_heads ? tma::EVICT_FIRST : tma::EVICT_LAST;
            ptx::mbarrier_arrive_expect(full, S::TABLE_BYTES);
#pragma unroll 1
            for (int at = 0; at < S::TABLE_BYTES / 128; at += S::BOX) {
                tma::load(near.table() + at * 128, &a.table_map, full,
                          (int)o.item.first / (S::BIASED ? 1 : 2) + at / S::STEP * 64,
                          row + at % S::STEP, head, batch, hint);
            }
        }
        __syncwarp();
    }
    /* Tile and head are read back: registers are few. */
    __device__ __forceinline__ void load_d_o(const OrderedItem &o, uint32_t n) const
    {
        if (ptx::thread() == 0) {
            const GradMemory<S> near = {(uint32_t)ptx::opaque((int)memory.base)};
            const uint32_t full = near.d_o_stages().full(n);
            near.d_o_stages().await_empty(n);
            const int row = row_of[n % S::STAGES], head = row_of[S::STAGES + n % S::STAGES];
            ptx::mbarrier_arrive_expect(full, S::STEP_BYTES);
            load_tile<S>(near.streamed(n, 1), &a.d_o_map, full, S::STEP,
                         (int)o.item.sequence.q_first + row, head, (int)o.item.sequence.tensor,
                         tma::EVICT_LAST);
        }
        __syncwarp();
    }
};
