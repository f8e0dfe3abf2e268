/*
 * items.cuh: work item of a backward pass -> (sequence, head, block), on the device: blocks of
 * query rows of a query head, or blocks of keys of a head. Heads and sequences run side by side;
 * blocks follow each other so that under a causal mask the heaviest come first: the last rows, the
 * first keys. The shares of a group are far from each other: each waits for the one behind
 * (shares_sm90.cuh). Varlen: slots as in kernel/schedule.cuh.
 */
#pragma once
#include "core/mask.h"
#include "cuda/backward/params.h"

struct GradItem {
    attn_sequence sequence;
    int64_t head, first; /* first row or key of the block */
    int64_t segment;     /* varlen: first of the packed rows or keys */
    int64_t share;       /* keys: which of the items that have heads of the group */
    bool empty;          /* no row or key is written */
};

/* The first of the packed rows or keys of segment v. Segment 0 lies before the first sequence, the
 * last one behind all of them. */
__device__ __forceinline__ int64_t grad_segment_start(const attn_problem &p, bool keys, int64_t v)
{
    const attn_tensor &rows = keys ? p.k : p.q;
    return v == 0            ? 0
           : v > p.batch + 1 ? rows.shape[1]
                             : attn_first_row(keys ? &p.cu_k : &p.cu_q, &rows, v - 1);
}

/* Divides numbers from 0 on: those of 32 bits in a quarter of the time. */
__device__ __forceinline__ int64_t divide(int64_t a, int64_t b)
{
    return (a | b) >> 32 == 0 ? (int64_t)((uint32_t)a / (uint32_t)b) : a / b;
}

__device__ __forceinline__ GradItem grad_item(const attn_problem &p, const attn_cuda_grad_items &s,
                                              int64_t index)
{
    GradItem item;
    if (p.varlen) {
        const int64_t slot = divide(index, s.heads * s.shares),
                      within = index - slot * s.heads * s.shares;
        int64_t lo = 0, hi = p.batch + 2;
        while (hi - lo > 1) {
            const int64_t middle = (lo + hi) / 2;
            if (grad_segment_start(p, s.keys, middle) / s.block + middle <= slot) {
                lo = middle;
            } else {
                hi = middle;
            }
        }
        item.share = divide(within, s.heads);
        item.head = within - item.share * s.heads;
        item.sequence = attn_problem_sequence(&p, lo == 0         ? p.batch
                                                  : lo <= p.batch ? lo - 1
                                                                  : p.batch + 1);
        item.first = (slot - grad_segment_start(p, s.keys, lo) / s.block - lo) * s.block;
        item.segment = lo;
    } else {
        const int64_t heads = p.batch * s.heads, columns = heads * s.shares,
                      begin = divide(index, s.blocks * s.section) * s.section,
                      width = min(s.section, columns - begin), within = index - begin * s.blocks,
                      block = divide(within, width), column = begin + within - block * width,
                      share = s.shares > 1 ? divide(column, heads) : 0,
                      head = column - share * heads, sequence = divide(head, s.heads);
        item.share = share;
        item.head = head - sequence * s.heads;
        item.sequence = attn_problem_sequence(&p, sequence);
        item.first = (s.keys ? block : s.blocks - 1 - block) * s.block;
        item.segment = 0;
    }
    item.empty = item.first >= (s.keys ? item.sequence.k_rows : item.sequence.nq);
    return item;
}

/* Where an item of whole sequences is. */
struct GradPlace {
    uint32_t sequence, head, first;
};

/* The same of whole sequences and groups in one share, whose numbers have 32 bits. */
__device__ __forceinline__ GradPlace grad_whole_place(const attn_problem &p,
                                                      const attn_cuda_grad_items &s, uint32_t index)
{
    const uint32_t blocks = (uint32_t)s.blocks, section = (uint32_t)s.section,
                   heads = (uint32_t)s.heads, begin = index / (blocks * section) * section,
                   width = min(section, (uint32_t)p.batch * heads - begin),
                   within = index - begin * blocks, block = within / width,
                   column = begin + within - block * width, sequence = column / heads;
    return {sequence, column - sequence * heads, (s.keys ? block : blocks - 1 - block) * s.block};
}

/* The same of rest number `index` (attn_cuda_grad_rests): of a head the last blocks come first. */
__device__ __forceinline__ GradPlace grad_rest_place(const attn_problem &p,
                                                     const attn_cuda_grad_items &s, uint32_t index)
{
    const uint32_t blocks = (uint32_t)s.rests.blocks, heads = (uint32_t)s.heads,
                   behind = index / blocks, column = (uint32_t)p.batch * heads - 1 - behind,
                   sequence = column / heads;
    return {sequence, column - sequence * heads,
            (blocks - 1 - (index - behind * blocks)) * (uint32_t)s.block};
}

__device__ __forceinline__ GradItem grad_whole_item(const attn_problem &p,
                                                    const attn_cuda_grad_items &s, uint32_t index)
{
    const GradPlace place = grad_whole_place(p, s, index);
    return {attn_problem_whole_sequence(&p, place.sequence), place.head, place.first};
}

/* The item of a call, computed by one thread in shared memory, since registers are few. All threads
 * of the CTA call it. */
__device__ __forceinline__ void share_item(GradItem &item, const attn_cuda_backward_params &a,
                                           const attn_cuda_grad_items &items, int64_t index)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        item = a.whole ? grad_whole_item(a.grads.problem, items, (uint32_t)index)
                       : grad_item(a.grads.problem, items, index);
    }
    __syncthreads();
}

/* The place of the note on 64 rows or keys from `first` of the item on: the index of the item that
 * backward_generic has for them. */
__device__ __forceinline__ int64_t grad_note(const attn_problem &p, const attn_cuda_grad_items &s,
                                             const GradItem &item, int64_t first)
{
    enum { BLOCK = 64 };
    const int64_t block = first / BLOCK, columns = p.batch * s.heads;
    if (p.varlen) {
        const int64_t start = grad_segment_start(p, s.keys, item.segment);
        return (start / BLOCK + item.segment + block) * s.heads + item.head;
    }
    const int64_t blocks = ((s.keys ? p.k.shape[1] : p.q.shape[1]) + BLOCK - 1) / BLOCK;
    return (s.keys ? block : blocks - 1 - block) * columns + item.sequence.index * s.heads +
           item.head;
}

/* The block's keys that are in use, and the rows that see some of them. */
__device__ __forceinline__ attn_interval grad_rows_of_keys(const attn_problem &p,
                                                           const attn_sequence &sequence,
                                                           int64_t first, int64_t keys)
{
    const int64_t last = min(first + keys, sequence.nk);
    attn_interval rows = {0, 0};
    if (first < last) {
        rows = attn_mask_queries(&p, &sequence, first, last);
    }
    return rows;
}

/* The members of an axis of extent `all` that share element i of a tensor's axis. */
__device__ __forceinline__ attn_interval grad_sharing(int64_t extent, int64_t all, int64_t i)
{
    attn_interval v = {extent == 1 ? 0 : i, extent == 1 ? all : i + 1};
    return v;
}

/* The place of tile 0 of a query head of the item's sequence among turns and sums; its next tiles
 * follow. slots: tiles of a head. */
__device__ __forceinline__ int64_t grad_tile_place(const attn_problem &p, const GradItem &item,
                                                   int64_t head, int rows, int64_t slots)
{
    const int64_t tile =
        p.varlen ? grad_segment_start(p, false, item.segment) / rows + item.segment : 0;
    return (item.sequence.tensor * p.heads + head) * slots + tile;
}

/* The place of the item's block of keys among turns and sums of such blocks. slots: blocks of a
 * head. */
__device__ __forceinline__ int64_t grad_key_place(const attn_problem &p,
                                                  const attn_cuda_grad_items &s,
                                                  const GradItem &item, int64_t slots)
{
    const int64_t slot =
        p.varlen ? grad_segment_start(p, true, item.segment) / s.block + item.segment : 0;
    return (item.sequence.tensor * s.heads + item.head) * slots + slot + item.first / s.block;
}

/* The sequence of row i of tensor batch b; -1: none. */
__device__ __forceinline__ int64_t grad_sequence_of_row(const attn_problem &p, int64_t b, int64_t i)
{
    int64_t lo = 0, hi = p.batch + 2;
    while (p.varlen && hi - lo > 1) {
        const int64_t middle = (lo + hi) / 2;
        (grad_segment_start(p, false, middle) <= i ? lo : hi) = middle;
    }
    return !p.varlen ? b : lo <= p.batch ? lo - 1 : -1;
}

/* The place of row 0 of a head of the sequence among LSE and delta: heads of a tensor's batch one
 * after the other, rows side by side. */
__device__ __forceinline__ int64_t grad_row_place(const attn_problem &p,
                                                  const attn_sequence &sequence, int64_t head)
{
    return (sequence.tensor * p.heads + head) * p.q.shape[1] + sequence.q_first;
}
