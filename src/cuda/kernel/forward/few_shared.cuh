/*
 * few_shared.cuh: sequences whose tables agree over the keys of a split are rows of one item: those
 * keys are read once for all of them. The first of them does it, and the CTAs of the others end at
 * once. A row's products, sums and parts are those that it has alone, so are its bits.
 *
 * Only neighbours are compared, groups of `slots` sequences (attn_cuda_sharing), over splits that
 * cut them at the same keys, all of which all rows see.
 */
#pragma once
#include "cuda/kernel/forward/few_shape.cuh"

/* The item of a CTA. The first sequences of all groups come first: they have the rows of the
 * others. */
__device__ __forceinline__ uint32_t shared_index(const attn_cuda_sharing &s, uint32_t index)
{
    const uint32_t n = quotient(index, s.items), slot = quotient(n, s.groups),
                   sequence = slot < s.slots.by ? (n - slot * s.groups.by) * s.slots.by + slot : n;
    return index + (sequence - n) * s.items.by;
}

/* An entry of the table of the sequence that begins there. */
__device__ __forceinline__ int64_t entry_at(const attn_cuda_sharing &s, const char *sequence,
                                            int page)
{
    const char *at = sequence + page * s.entry;
    return s.wide ? *(const int64_t *)at : *(const int32_t *)at;
}

/* Clears the slots of sequences whose tables differ from that of slot `own` between two pages, by a
 * warp: a lane for each page, many slots at once, since each load takes its time. */
__device__ __forceinline__ uint32_t compare_pages(const attn_cuda_sharing &s, int first, int own,
                                                  uint32_t slots, int page, int end)
{
    constexpr int AT_ONCE = 8;
    const char *table = s.table + first * s.sequence, *mine = table + own * s.sequence;
#pragma unroll 1
    for (page += threadIdx.x % 32; __any_sync(~0u, page < end); page += 32) {
        const int at = min(page, end - 1);
        const int64_t wanted = entry_at(s, mine, at);
        uint32_t same = 0;
#pragma unroll 1
        for (int from = 0; from < 32 && slots >> from != 0; from += AT_ONCE) {
            int64_t entry[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const bool there = slots >> (from + i) & 1;
                entry[i] = entry_at(s, there ? table + (from + i) * s.sequence : mine, at);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                same |= entry[i] == wanted ? 1u << (from + i) : 0;
            }
        }
        slots &= __reduce_and_sync(~0u, same);
    }
    return slots;
}

/* Finds the slots whose rows the items of a sequence's split have, or leave to an earlier sequence,
 * by a warp, a lane for each. Tables that share nothing mostly differ in the first page. */
template <class S>
__device__ __forceinline__ uint32_t find_family(const attn_cuda_codes_params &c, int sequence,
                                                int split)
{
    const attn_cuda_sharing &s = c.sharing;
    const int lane = threadIdx.x % 32,
              first = (int)(quotient((uint32_t)sequence, s.slots) * s.slots.by),
              own = sequence - first;
    const bool there = lane < (int)s.slots.by && first + lane < s.batch;
    int diagonal;
    const attn_band band = plain_band<false>(c.forward, there ? first + lane : sequence, diagonal);
    int each;
    const Blocks b = few_blocks<S>(c.forward, band, 0, (int)s.rows.by, split, 1, each);
    const bool whole = there && b.count > 0 && !b.any_masked();
    const int last = __shfl_sync(~0u, b.last, own), count = __shfl_sync(~0u, b.count, own);
    const bool wanted = __shfl_sync(~0u, (int)whole, own),
               alike = whole && wanted && b.last == last && b.count == count;
    const int page = (int)quotient((uint32_t)((last - count + 1) * S::KEYS), s.page),
              end = (int)quotient((uint32_t)((last + 1) * S::KEYS - 1), s.page) + 1;
    const int64_t entry = alike ? entry_at(s, s.table + (first + lane) * s.sequence, page) : 0,
                  mine = __shfl_sync(~0u, entry, own);
    const uint32_t slots = __ballot_sync(~0u, alike && entry == mine);
    return (slots & slots - 1) == 0 ? 1u << own : compare_pages(s, first, own, slots, page, end);
}
