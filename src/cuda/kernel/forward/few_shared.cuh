/*
 * few_shared.cuh: sequences whose tables agree over the keys of a split are rows of one item: those
 * keys are read once for all of them. The first of them does it, and the CTAs of the others end at
 * once. A row's products, sums and parts are those that it has alone, so are its bits.
 *
 * Only neighbours are compared, groups of `slots` sequences (attn_cuda_few), over splits that cut
 * them at the same keys, all of which all rows see.
 */
#pragma once
#include "cuda/kernel/forward/few_shape.cuh"

/* Clears the slots of sequences whose tables differ from that of slot `own` between two pages, by a
 * warp: a lane for each page, all slots at once, since each load takes its time. */
__device__ __forceinline__ uint32_t compare_pages(const attn_problem &p, int first, int own,
                                                  uint32_t slots, int page, int end)
{
    constexpr int AT_ONCE = 8;
    for (page += threadIdx.x % 32; __any_sync(~0u, page < end); page += 32) {
        const int at = min(page, end - 1);
        const int64_t mine = attn_kv_entry(&p.table, first + own, at);
        uint32_t same = 0;
#pragma unroll 1
        for (int s = 0; s < 32 && slots >> s != 0; s += AT_ONCE) {
            int64_t entry[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int slot = slots >> (s + i) & 1 ? s + i : own;
                entry[i] = attn_kv_entry(&p.table, first + slot, at);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                same |= entry[i] == mine ? 1u << (s + i) : 0;
            }
        }
        slots &= __reduce_and_sync(~0u, same);
    }
    return slots;
}

/* Finds the sequences whose rows the item of that number has, or leaves to an earlier one, by a
 * warp. Tables that share nothing mostly differ in the first page, which lanes compare at once. */
template <class S>
__device__ __forceinline__ void find_family(const attn_cuda_forward_params &a, uint32_t index,
                                            FewFamily &to)
{
    const attn_problem &p = a.problem;
    const FewColumn place = few_column(a.few, index);
    const int slots = a.few.slots, lane = threadIdx.x % 32,
              sequence = few_sequence(a, quotient(place.column, a.few.kv_heads)),
              own = sequence % slots, first = sequence - own,
              slot = lane < min(slots, (int)p.batch - first) ? lane : own;
    int diagonal;
    const attn_band band = plain_band(a, first + slot, diagonal);
    const Blocks b = few_blocks<S>(a, band, 0, a.few.nq * (int)a.few.group.by, (int)place.split);
    const bool whole = slot == lane && b.count > 0 && !b.any_masked();
    const int last = __shfl_sync(~0u, b.last, own), count = __shfl_sync(~0u, b.count, own),
              size = a.pages.size, page = (last - count + 1) * S::KEYS / size,
              end = ((last + 1) * S::KEYS - 1) / size + 1;
    const bool alike =
        __shfl_sync(~0u, (int)whole, own) && whole && b.last == last && b.count == count;
    const int64_t entry = alike ? attn_kv_entry(&p.table, first + slot, page) : 0,
                  mine = __shfl_sync(~0u, entry, own);
    uint32_t same = __ballot_sync(~0u, alike && entry == mine);
    if (same & same - 1) {
        same = compare_pages(p, first, own, same, page, end);
    }
    if (lane == 0) {
        to = {same, first, own};
    }
}
