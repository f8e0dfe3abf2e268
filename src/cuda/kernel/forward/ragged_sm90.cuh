/*
 * ragged_sm90.cuh: the producer warpgroup of forward_sm90 where sequences may end inside the
 * tensors, or the rows of several heads share a tile. Its warps:
 *
 *     0  loads by TMA: one thread (RaggedLoader); where keys lie in pages all (paged_sm90.cuh)
 *     1  finds the items and posts them, one ahead of what is being loaded
 *     2, 3  clean tiles of V (clean_sm90.cuh)
 *
 * Rows of Q and K that belong to others do no harm: rows of Q are rows of O that nobody writes, and
 * scores of keys beyond the last are masked.
 */
#pragma once
#include "cuda/kernel/forward/produce_sm90.cuh"
#include "cuda/kernel/forward/split_sm90.cuh"

/* Finds the last of the segments 0 .. batch + 1 whose slots begin at `slot` or before. Called by
 * the whole warp. */
__device__ __forceinline__ int find_segment(const attn_cuda_forward_params &a, int slot)
{
    const int batch = (int)a.problem.batch, total = (int)a.problem.q.shape[1],
              rows = a.schedule.rows;
    int lo = 0, count = batch + 2;
#pragma unroll 1
    while (count > 1) {
        const int step = (count + 31) / 32, v = lo + (int)(threadIdx.x % 32) * step;
        const bool before = v < lo + count &&
                            segment_at(a.index[ATTN_CUDA_CU_Q], v, batch, total) / rows + v <= slot;
        const int last = __popc(__ballot_sync(~0u, before)) - 1; /* segment lo begins there */
        lo += last * step;
        count = min(step, count - last * step);
    }
    return lo;
}

/* Segment v as attn_problem_lengths has it, in few instructions, since they are fetched for every
 * item. Each lane reads one number: the beginnings of this segment and of the next one among rows
 * and among keys, rows and keys in use, and left padding if PADDED. The whole warp; its first lane
 * writes. */
template <bool PADDED>
__device__ __forceinline__ void fill_sequence(const attn_cuda_forward_params &a, int v,
                                              attn_sequence &s)
{
    const attn_problem &p = a.problem;
    /* opaque: else kept over the producer's loop, and spilled */
    const int lane = PADDED ? ptx::opaque(threadIdx.x % 32) : threadIdx.x % 32,
              batch = (int)p.batch;
    const int kind =
        lane < 4 ? lane / 2 : min(lane - 2, (int)(PADDED ? ATTN_CUDA_PAD_K : ATTN_CUDA_USED_K));
    const bool of_q = kind == ATTN_CUDA_CU_Q || kind == ATTN_CUDA_USED_Q;
    const int total = (int)(of_q ? p.q.shape[1] : p.keys);
    const bool inside = v >= 1 && v <= batch, given = a.index[kind].data != NULL;
    int x = PADDED && kind == ATTN_CUDA_PAD_K ? 0 : total;
    if (kind < ATTN_CUDA_USED_Q) {
        x = given ? segment_at(a.index[kind], v + lane % 2, batch, total) : lane % 2 * total;
    } else if (inside && given) {
        x = index_at(a.index[kind], v - 1, total);
    }
    const int q = __shfl_sync(~0u, x, 0), q_end = __shfl_sync(~0u, x, 1),
              k = __shfl_sync(~0u, x, 2), k_end = __shfl_sync(~0u, x, 3),
              q_used = __shfl_sync(~0u, x, 4), k_used = __shfl_sync(~0u, x, 5),
              pad = PADDED ? __shfl_sync(~0u, x, 6) : 0;
    const int nq = max(q_end - q, 0), k_rows = max(k_end - k, 0);
    const int used = inside ? min(q_used, nq) : 0, in_use = inside ? min(k_used, k_rows) : 0,
              padding = min(pad, in_use);
    if (lane == 0) {
        s.index = inside ? v - 1 : 0, s.tensor = p.varlen ? 0 : v - 1;
        s.q_first = q, s.k_first = k + padding;
        s.nq = nq, s.nq_used = used, s.nk = in_use - padding, s.k_rows = k_rows - padding;
        s.outside = !inside;
    }
}

/* True if the mask or the bias differs by heads, and sequences share it: a head's sequences then
 * come one after the other, so that its elements are in the L2 for all but the first. */
template <class S> __device__ __forceinline__ bool shares_scores(const attn_problem &p)
{
    const attn_tensor &t = S::SCORES == ATTN_CUDA_BIASED ? p.bias : p.mask;
    return (S::SCORES == ATTN_CUDA_BIASED || S::MASKED) && t.shape[0] == 1 && t.shape[1] != 1;
}

/* Finds an item. Called by the whole warp, whose first lane fills the item in. With a bounded right
 * side the last rows of all heads, which see most keys, come first. */
template <class S>
__device__ __forceinline__ void ragged_item(const attn_cuda_forward_params &a, uint32_t index,
                                            Post &post)
{
    const attn_problem &p = a.problem;
    const attn_cuda_schedule &s = a.schedule;
    int v, head, row;
    if (p.varlen) {
        const int place = (int)(index / (uint32_t)s.heads);
        const int slot = p.window_right != ATTN_UNBOUNDED ? s.blocks - 1 - place : place;
        v = find_segment(a, slot), head = (int)(index % (uint32_t)s.heads);
        const int first = segment_at(a.index[ATTN_CUDA_CU_Q], v, (int)p.batch, (int)p.q.shape[1]);
        row = (slot - first / s.rows - v) * s.rows;
    } else {
        uint32_t column, block;
        dense_place(s, index, column, block);
        row = (int)block * s.rows;
        v = (int)(column / (uint32_t)s.heads) + 1, head = (int)(column % (uint32_t)s.heads);
        if (shares_scores<S>(p)) {
            v = (int)(column % (uint32_t)p.batch) + 1, head = (int)(column / (uint32_t)p.batch);
        }
        if (threadIdx.x % 32 == 0) {
            post.part = first_part(a, column, block);
        }
    }
    fill_sequence<S::PAGED>(a, v, post.item.sequence);
    if (threadIdx.x % 32 == 0) {
        post.item.head = head * s.fold;
        post.item.first_row = row;
        post.item.empty = row >= post.item.sequence.nq;
    }
}

/* Keys of an item up to the end of the last block in which a mask with one row for all shows one:
 * blocks behind it, where padding is masked, add nothing. The whole warp. */
template <class S>
__device__ __forceinline__ int shown_keys(const attn_cuda_forward_params &a, const Item &item)
{
    const attn_tensor &mask = a.problem.mask;
    const int columns = (int)min(mask.shape[3], item.sequence.nk);
    if (!a.steps_sm90.mask || a.steps_sm90.mask_row != 0 || mask.shape[3] == 1 ||
        a.schedule.splits > 1 || (a.schedule.fold > 1 && mask.shape[1] > 1)) {
        return INT32_MAX;
    }
    const char *const row = attn_at_broadcast(&mask, item.sequence.index, item.head, 0, 0);
    int end = (columns + S::BN - 1) / S::BN * S::BN;
#pragma unroll 1
    for (; end > 0; end -= S::BN) {
        bool shown = false;
#pragma unroll 1
        for (int i = ptx::opaque(threadIdx.x % 32) + end - S::BN; i < min(end, columns); i += 32) {
            shown |= row[i * a.steps_sm90.mask_step] != 0;
        }
        if (__any_sync(~0u, shown)) {
            break;
        }
    }
    return end;
}

/* Computes values that follow from an item. keys: of it, at most. One thread. */
template <class S>
__device__ __forceinline__ void complete_post(const attn_cuda_forward_params &a, Post &post,
                                              int keys)
{
    attn_sequence &s = post.item.sequence;
    s.diagonal = attn_sequence_diagonal(&a.problem, &s);
    post.item.band = attn_mask_band(&a.problem, &s);
    post.item.band.keys = min(post.item.band.keys, keys);
    post.blocks = key_blocks(post.item.band, (int)post.item.first_row, a.schedule.rows, S::BN);
    if (a.schedule.splits > 1) {
        post.part += post.split * a.parts.rows;
        const int least =
            S::SHARED ? attn_cuda_evened_least(&a.schedule, ATTN_CUDA_EVEN_TIMES, post.blocks.count)
                      : a.schedule.least;
        post.blocks =
            split_blocks<S::BN>(a.schedule, least, post.item.band, post.blocks, post.split);
    }
    const int rest = post.item.band.keys - post.blocks.last * S::BN;
    const bool others =
        S::PAGED || attn_kv_row(&s, s.nk) < a.problem.keys; /* rows beyond the tensor are 0 */
    post.tail = post.blocks.count > 0 && rest < S::BN && others ? rest : 0;
}

/* The work of the second warp: posts all of the CTA's items, some again (clean_sm90.cuh), and the
 * end. The number of the next item is on its way while this one is looked up. */
template <class S>
__device__ __forceinline__ void post_ragged(const attn_cuda_forward_params &a,
                                            const Memory<S> &memory)
{
    const bool first = threadIdx.x % 32 == 0;
    uint32_t index = blockIdx.x, posts = 0;
#pragma unroll 1
    for (;;) {
        Post &post = memory.post(posts);
        const bool left = index < (uint32_t)a.schedule.items;
        bool empty = true;
        ptx::mbarrier_wait(memory.post_empty(posts), parity(posts) ^ 1);
        const uint32_t again = take_again(memory, posts, left);
        if (!left && again == NO_ITEM) {
            break;
        }
        const uint32_t item = again != NO_ITEM ? again : index;
        if (first && again == NO_ITEM) {
            index = following_item(a.counter, index);
        }
        ragged_item<S>(a, item / (uint32_t)a.schedule.splits, post);
        int keys = INT32_MAX;
        if constexpr (S::MASKS) {
            __syncwarp(); /* the item is there */
            keys = shown_keys<S>(a, post.item);
        }
        if (first) {
            empty = post.item.empty;
        }
        if (first && !empty) {
            post.end = post.nonfinite = false, post.clean = again != NO_ITEM;
            const Post &before = memory.post(posts - 1);
            post.number = posts == 0 ? 0 : before.number + before.blocks.count;
            post.tiles = posts == 0 ? 0 : before.tiles + (before.blocks.count > 0);
            post.item_index = item, post.split = (int)(item % (uint32_t)a.schedule.splits);
            complete_post<S>(a, post, keys);
        }
        empty = __shfl_sync(~0u, empty, 0);
        if (!empty) {
            __syncwarp();
            post_views<S>(a, post);
            __syncwarp();
            if (first) {
                ptx::mbarrier_arrive(memory.post_full(posts));
            }
        }
        posts += !empty;
        index = __shfl_sync(~0u, index, 0);
    }
    if (first) {
        memory.post(posts).end = true;
        ptx::mbarrier_arrive(memory.post_full(posts));
    }
}

template <class S> struct PagedLoader; /* paged_sm90.cuh */

template <class S>
__device__ __forceinline__ void produce_ragged(const attn_cuda_forward_params &a,
                                               const Memory<S> &memory)
{
    const int warp = ptx::uniform(threadIdx.x / 32);
    if (warp == 0) {
        if constexpr (S::PAGED) {
            produce<S>(a, memory, PagedLoader<S>{{a, memory}});
        } else if (threadIdx.x == 0) {
            produce<S>(a, memory, RaggedLoader<S>{a, memory});
        }
    } else if (warp == 1) {
        post_ragged<S>(a, memory);
    } else {
        clean_tiles<S>(a, memory);
    }
}
