/*
 * loader_sm90.cuh: the warp that loads tiles for ordered_sm90.cuh: K and V of an item, Q and dO of
 * its tiles with LSE and delta.
 */
#pragma once
#include "cuda/kernel/backward/run_sm90.cuh"

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
            if constexpr (S::DROPS) {
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
        load_statistics<S>(a, memory, o.item, head, row, n, o.unit);
        ptx::mbarrier_arrive(full);
        if constexpr (S::APART) {
            load_d_o(o, n);
        }
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
