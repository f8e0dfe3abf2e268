/*
 * schedule.cuh: work item -> (sequence, query head, block of rows), on the device. core/schedule.h
 * is the CPU's.
 *
 * Dense: columns are the query heads of all sequences. They are cut into sections whose K and V fit
 * in the L2 cache together; within a section the blocks of rows run from last to first (under a
 * causal mask the heaviest come first), and the columns side by side.
 *
 * Varlen: only the GPU knows the lengths. Sequence b of length n starting at c gets the slots c /
 * rows + b up to (c + n) / rows + b, enough for its blocks and monotone in b, so that a slot finds
 * its sequence by bisection and nothing needs to be counted beforehand. Slots that turn out empty
 * are skipped.
 */
#pragma once
#include "core/mask.h"
#include "cuda/params.h"
#include "cuda/kernel/ptx/ptx.cuh"

struct Item {
    attn_sequence sequence;
    attn_band band; /* keys that the rows see */
    int head;
    int64_t first_row;
    bool empty; /* no row is written */
};

/* The first of the packed rows of segment v. Segment 0 lies before the first sequence, the last one
 * behind all of them. */
__device__ __forceinline__ int64_t segment_start(const attn_problem &p, int64_t v)
{
    return v == 0 ? 0 : v > p.batch + 1 ? p.q.shape[1] : attn_first_row(&p.cu_q, &p.q, v - 1);
}

/* The sequence of segment v. */
__device__ __forceinline__ int64_t segment_sequence(const attn_problem &p, int64_t v)
{
    return v == 0 ? p.batch : v <= p.batch ? v - 1 : p.batch + 1;
}

__device__ __forceinline__ void varlen_item(const attn_problem &p, const attn_cuda_schedule &s,
                                            int64_t index, Item &item)
{
    int64_t slot = index / p.heads, lo = 0, hi = p.batch + 2;
    while (hi - lo > 1) {
        int64_t middle = (lo + hi) / 2;
        if (segment_start(p, middle) / s.rows + middle <= slot) {
            lo = middle;
        } else {
            hi = middle;
        }
    }
    item.head = (int)(index % p.heads);
    item.sequence = attn_problem_sequence(&p, segment_sequence(p, lo));
    item.first_row = (slot - segment_start(p, lo) / s.rows - lo) * s.rows;
    item.empty = item.first_row >= item.sequence.nq;
}

/* Finds column and block of rows of an item. Dense problems. */
__device__ __forceinline__ void dense_place(const attn_cuda_schedule &s, uint32_t index,
                                            uint32_t &column, uint32_t &block)
{
    if (s.blocks == 1) { /* the same without divisions */
        column = index, block = 0;
        return;
    }
    uint32_t per_section = (uint32_t)s.section * (uint32_t)s.blocks;
    uint32_t last = (uint32_t)s.sections - 1, section = min(index / per_section, last),
             within = index - section * per_section, first = section * (uint32_t)s.section;
    uint32_t width = section < last ? (uint32_t)s.section : (uint32_t)s.columns - first;
    column = first + within % width, block = (uint32_t)s.blocks - 1 - within / width;
}

/* An item of a dense problem with every row and key in use and no origins. */
__device__ __forceinline__ void whole_item(const attn_problem &p, const attn_cuda_schedule &s,
                                           uint32_t index, Item &item)
{
    uint32_t column, block, heads = (uint32_t)p.heads;
    dense_place(s, index, column, block);
    item.sequence = attn_problem_whole_sequence(&p, column / heads);
    item.head = (int)(column % heads);
    item.first_row = (int64_t)block * s.rows;
    item.empty = false;
}

/* An item of a problem with lengths of any kind. */
__device__ __forceinline__ void schedule_item(const attn_problem &p, const attn_cuda_schedule &s,
                                              uint32_t index, Item &item)
{
    if (p.varlen) {
        varlen_item(p, s, index, item);
        return;
    }
    whole_item(p, s, index, item);
    item.sequence = attn_problem_sequence(&p, item.sequence.index);
}

/* Reads element i, cut to 0 .. most. */
__device__ __forceinline__ int index_at(const attn_cuda_index &t, int i, int most)
{
    const char *at = t.data + (int64_t)i * t.step;
    const int64_t x = t.wide ? *(const int64_t *)at : *(const int32_t *)at;
    return (int)min(max(x, (int64_t)0), (int64_t)most);
}

/* Where segment v begins among the `total` rows or keys: 0 is what lies before the first sequence,
 * v is sequence v - 1, batch + 1 is what lies after the last. */
__device__ __forceinline__ int segment_at(const attn_cuda_index &cu, int v, int batch, int total)
{
    return v == 0 ? 0 : v > batch + 1 ? total : index_at(cu, v - 1, total);
}

/* Computes attn_problem_sequence of segment v in 32 bits and in place, since registers are few. */
__device__ __forceinline__ void fill_segment(const attn_cuda_forward_params &a, int v,
                                             attn_sequence &s)
{
    const attn_problem &p = a.problem;
    const int batch = (int)p.batch, rows = (int)p.q.shape[1], keys = (int)p.keys;
    const bool inside = v >= 1 && v <= batch;
    const attn_cuda_index *index = a.index;
    const int q = p.varlen ? segment_at(index[ATTN_CUDA_CU_Q], v, batch, rows) : 0,
              q_end = p.varlen ? segment_at(index[ATTN_CUDA_CU_Q], v + 1, batch, rows) : rows,
              nq = max(q_end - q, 0);
    s.index = inside ? v - 1 : 0, s.tensor = p.varlen ? 0 : v - 1;
    s.outside = !inside;
    s.q_first = q, s.nq = nq;
    s.nq_used = !inside ? 0
                : index[ATTN_CUDA_USED_Q].data == NULL
                    ? nq
                    : index_at(index[ATTN_CUDA_USED_Q], v - 1, nq);
    const int k = p.varlen ? segment_at(index[ATTN_CUDA_CU_K], v, batch, keys) : 0,
              k_end = p.varlen ? segment_at(index[ATTN_CUDA_CU_K], v + 1, batch, keys) : keys,
              k_rows = max(k_end - k, 0);
    const int in_use = !inside ? 0
                       : index[ATTN_CUDA_USED_K].data == NULL
                           ? k_rows
                           : index_at(index[ATTN_CUDA_USED_K], v - 1, k_rows);
    const int padding = !inside || index[ATTN_CUDA_PAD_K].data == NULL
                            ? 0
                            : index_at(index[ATTN_CUDA_PAD_K], v - 1, in_use);
    s.k_first = k + padding, s.k_rows = k_rows - padding, s.nk = in_use - padding;
    s.diagonal = attn_sequence_diagonal(&p, &s);
}

/* Computes schedule_item in 32 bits and in place. One thread calls it. */
__device__ __forceinline__ void fill_item(const attn_cuda_forward_params &a, uint32_t index,
                                          Item &item)
{
    const attn_problem &p = a.problem;
    const attn_cuda_schedule &s = a.schedule;
    int v, row;
    if (p.varlen) {
        const int slot = (int)(index / (uint32_t)s.heads), batch = (int)p.batch;
        const int rows = (int)p.q.shape[1];
        int end = batch + 2;
        v = 0;
#pragma unroll 1
        while (end - v > 1) {
            const int middle = (v + end) / 2,
                      at = segment_at(a.index[ATTN_CUDA_CU_Q], middle, batch, rows);
            v = at / s.rows + middle <= slot ? middle : v;
            end = v == middle ? end : middle;
        }
        row = (slot - segment_at(a.index[ATTN_CUDA_CU_Q], v, batch, rows) / s.rows - v) * s.rows;
        item.head = (int)(index % (uint32_t)s.heads);
    } else {
        uint32_t column, block;
        dense_place(s, index, column, block);
        v = (int)(column / (uint32_t)s.heads) + 1;
        row = (int)block * s.rows;
        item.head = (int)(column % (uint32_t)s.heads);
    }
    fill_segment(a, v, item.sequence);
    item.first_row = row;
    item.empty = row >= item.sequence.nq;
}

/* Finds the item for kernels of all kinds of problems, whose threads wait for it: whole problems
 * take fewer steps. */
__device__ __forceinline__ void any_item(const attn_cuda_forward_params &a, uint32_t index,
                                         Item &item)
{
    if (__builtin_expect(a.whole, true)) {
        whole_item(a.problem, a.schedule, index, item);
    } else {
        schedule_item(a.problem, a.schedule, index, item);
    }
}

__device__ __forceinline__ int clamp_key(const attn_band &band, int key)
{
    return min(max(key, 0), band.keys);
}

/* The key blocks of an item, from `last` downwards. All rows see blocks full_first .. full_last - 1
 * in full. */
struct Blocks {
    int last, count, full_first, full_last;
    int end; /* behind the last key that some row sees */

    __device__ __forceinline__ bool masked(int block) const
    {
        return block < full_first || block >= full_last;
    }
    __device__ __forceinline__ Blocks uniform() const
    {
        return {ptx::uniform(last), ptx::uniform(count), ptx::uniform(full_first),
                ptx::uniform(full_last), ptx::uniform(end)};
    }
    __device__ __forceinline__ void mask_all()
    {
        full_first = full_last = 0;
    }
    /* The blocks that are among `others` too. */
    __device__ __forceinline__ Blocks among(const Blocks &others) const
    {
        const int before = max(last - count, others.last - others.count);
        Blocks b = *this;
        b.last = min(last, others.last);
        b.count = max(b.last - before, 0);
        b.end = b.last < last ? 1 << 30 : end; /* the rightmost block counts in full */
        return b;
    }
    __device__ __forceinline__ bool any_masked() const
    {
        return last - count + 1 < full_first || last >= full_last;
    }
};

/* The key blocks of rows first .. first + rows - 1 of the sequence. */
__device__ __forceinline__ Blocks key_blocks(const attn_band &band, int first, int rows, int keys)
{
    const int end = min(first + rows, band.rows);
    Blocks b = {};
    if (first < end) {
        const int lo = clamp_key(band, first + band.from), hi = clamp_key(band, end - 1 + band.to);
        if (lo < hi) {
            b.end = hi;
            b.last = (hi - 1) / keys;
            b.count = b.last - lo / keys + 1;
            b.full_first = (clamp_key(band, end - 1 + band.from) + keys - 1) / keys;
            b.full_last = clamp_key(band, first + band.to) / keys;
        }
    }
    return b;
}

/* The blocks of one split, counted from the right. */
template <int BN>
__device__ __forceinline__ Blocks split_blocks(const attn_cuda_schedule &s, int least,
                                               const attn_band &band, const Blocks &b, int split)
{
    const int each = attn_cuda_split_each(&s, least, band.keys, b.count), before = split * each;
    Blocks mine = b;
    mine.last -= before;
    mine.count = max(min(b.count - before, each), 0);
    mine.end = min(b.end, (mine.last + 1) * BN);
    return mine;
}
