/*
 * consume_sm90.cuh: the consumer warpgroups of forward_sm90, 64 query rows each: the tile loop and the results.
 */
#pragma once
#include "epilogue.cuh"
#include "shape_sm90.cuh"
#include "wgmma.cuh"

template <class S> __device__ __forceinline__ void issue_qk(float (&s)[S::BN / 2], uint32_t q, uint32_t k)
{
    const uint64_t a = wgmma::descriptor(q, 0), b = wgmma::descriptor(k, 0);
#pragma unroll
    for (int step = 0; step < S::D / 16; step++) {
        int chunk = step / 4, within = step % 4 * 2;
        wgmma::Product<S::BF16, S::BN>::ss(s, a + chunk * S::BM * 8 + within, b + chunk * S::BN * 8 + within, step > 0);
    }
    wgmma::commit();
}

template <class S>
__device__ __forceinline__ void issue_pv(float (&o)[S::D / 2], const uint32_t (&p)[S::BN / 4], uint32_t v,
                                         int accumulate)
{
    const uint64_t b = wgmma::descriptor(v, S::BN * 128);
#pragma unroll
    for (int step = 0; step < S::BN / 16; step++) {
        wgmma::Product<S::BF16, S::D>::rs(o, p + 4 * step, b + step * 128, step > 0 ? 1 : accumulate);
    }
    wgmma::commit();
}

/* What a consumer thread keeps of its item: two rows. */
template <class S> struct Rows {
    float o[S::D / 2];
    RowState state[2];
};

/* The row within the item that state[0] is for; state[1] is 8 further. */
__device__ __forceinline__ int thread_row()
{
    return (threadIdx.x / 32 - 4) * 16 + threadIdx.x % 32 / 4;
}

/* The keys that this warp's rows see, into shared memory: they are needed in masked blocks only. */
template <class S>
__device__ __forceinline__ void note_bounds(const attn_problem &p, const Memory<S> &memory, const Item &item)
{
    __syncwarp();
    if (threadIdx.x % 32 < 16) {
        int row = (threadIdx.x / 32 - 4) * 16 + threadIdx.x % 32;
        attn_interval keys = attn_mask_row(&p, &item.sequence, item.first_row + row);
        memory.bounds()[row] = make_int2((int)keys.lo, (int)keys.hi);
    }
    __syncwarp();
}

template <class S>
__device__ __forceinline__ void softmax_block(float c, const Memory<S> &memory, const Blocks &b, int block,
                                              float (&s)[S::BN / 2], Rows<S> &rows, float (&alpha)[2])
{
    if (block < b.full_first || block >= b.full_last) {
        const int2 *at = memory.bounds() + thread_row();
        const int lo[2] = {at[0].x - block * S::BN, at[8].x - block * S::BN};
        const int hi[2] = {at[0].y - block * S::BN, at[8].y - block * S::BN};
        mask_scores(s, lo, hi);
    }
    online_softmax(s, c, rows.state, alpha);
}

/* The key blocks of an item. leader: the thread that speaks for the warpgroup. */
template <class S>
__device__ __forceinline__ void run_blocks(float c, Rows<S> &rows, const Memory<S> &memory, const Blocks b,
                                           uint32_t number, uint32_t tiles)
{
    const int group = threadIdx.x / 128 - 1;
    const bool leader = threadIdx.x % 128 == 0;
    float s[S::BN / 2], alpha[2];
    uint32_t p[S::BN / 4];
    const uint32_t q = memory.q() + group * 64 * 128;
    const int mine = 1 + group, next = 1 + (group + 1) % S::GROUPS;

    ptx::mbarrier_wait(memory.q_full(), tiles & 1);
    ptx::mbarrier_wait(memory.k_full(number), parity(number));
    wgmma::fence();
    issue_qk<S>(s, q, memory.k(number));
    wgmma::wait<0>();
    wgmma::hold(s);
    if (leader) {
        ptx::mbarrier_arrive(memory.k_empty(number));
    }
    softmax_block<S>(c, memory, b, b.last, s, rows, alpha);
    pack_probabilities<S::BF16>(s, p);
#pragma unroll 1
    for (int i = 1; i < b.count; i++) {
        uint32_t n = number + i;
        ptx::mbarrier_wait(memory.k_full(n), parity(n));
        if (S::TURNS) {
            ptx::barrier_sync(mine, 256);
        }
        wgmma::hold(p);
        wgmma::fence();
        issue_qk<S>(s, q, memory.k(n));
        ptx::mbarrier_wait(memory.v_full(n - 1), parity(n - 1));
        wgmma::fence();
        issue_pv<S>(rows.o, p, memory.v(n - 1), i > 1);
        if (S::TURNS) {
            ptx::barrier_arrive(next, 256);
        }
        wgmma::wait<1>();
        wgmma::hold(s);
        if (leader) {
            ptx::mbarrier_arrive(memory.k_empty(n));
        }
        softmax_block<S>(c, memory, b, b.last - i, s, rows, alpha);
        wgmma::wait<0>();
        wgmma::hold(rows.o);
        wgmma::hold(p);
        if (leader) {
            ptx::mbarrier_arrive(memory.v_empty(n - 1));
        }
        pack_probabilities<S::BF16>(s, p);
        rescale(rows.o, alpha);
    }
    if (leader) {
        ptx::mbarrier_arrive(memory.q_empty());
    }
    uint32_t n = number + b.count - 1;
    ptx::mbarrier_wait(memory.v_full(n), parity(n));
    wgmma::hold(p);
    wgmma::fence();
    issue_pv<S>(rows.o, p, memory.v(n), b.count > 1);
    wgmma::wait<0>();
    wgmma::hold(rows.o);
    if (leader) {
        ptx::mbarrier_arrive(memory.v_empty(n));
    }
}

template <class S>
__device__ __forceinline__ void finish_rows(const attn_cuda_forward_params &a, const Memory<S> &memory,
                                            const Post &post, Rows<S> &rows)
{
    const Item &item = post.item;
    const Blocks &b = post.blocks;
    const bool masked = b.last - b.count + 1 < b.full_first || b.last >= b.full_last;
    const attn_problem &p = a.problem;
    const int lane = threadIdx.x % 32;
    const int first_row = (int)item.first_row + thread_row();
    int2 *bounds = memory.bounds() + thread_row(); /* no longer needed: -1 now marks rows for the careful path */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float m = rows.state[r].m, l = quad_sum(rows.state[r].l), exponent = __fmul_rn(m, a.scale_log2);
        OutputRow w = {item.sequence, item.head, first_row + 8 * r, m != -INFINITY};
        w.seen &= w.row < item.sequence.nq_used;
        bool finite = fabsf(l) <= 3.4e38f, far = w.seen && fabsf(exponent) > 4194304; /* 2^22 */
#pragma unroll
        for (int i = 2 * r; i < S::D / 2; i += 4) {
            finite &= fabsf(rows.o[i]) <= 3.4e38f && fabsf(rows.o[i + 1]) <= 3.4e38f;
        }
        bool careful = __ballot_sync(~0u, w.seen && (far || (!finite && masked))) >> (lane & ~3) & 15;
        bool write = !careful && w.row < item.sequence.nq;
        if (careful) {
            bounds[8 * r].x = -1;
        }
        float factor = finish_row(p, w, exponent * LN2, l, write && lane % 4 == 0);
        char *to = attn_at(&p.o, item.sequence.tensor, item.sequence.q_first + w.row, item.head, 0);
        if (!w.seen) {
#pragma unroll
            for (int i = 2 * r; i < S::D / 2; i += 4) {
                rows.o[i] = rows.o[i + 1] = 0;
            }
        }
        store_row<S::BF16>(p, rows.o, r, factor, to, write);
    }
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        if (bounds[i - lane / 4].x == -1) {
            OutputRow w = {item.sequence, item.head, first_row - lane / 4 + i, true};
            careful_row<S::BF16, S::D>(p, w, a.scale_log2);
        }
    }
}

/* No row of the item sees a key. */
template <class S> __device__ __forceinline__ void finish_empty(const attn_problem &p, const Item &item)
{
    const int lane = threadIdx.x % 32, first = (threadIdx.x / 32 - 4) * 16;
#pragma unroll 1
    for (int i = 0; i < 16 && item.first_row + first + i < item.sequence.nq; i++) {
        OutputRow w = {item.sequence, item.head, (int)item.first_row + first + i, false};
        finish_row(p, w, 0, 0, lane == 0);
#pragma unroll 1
        for (int c = lane; c < p.dv; c += 32) {
            store_element<S::BF16>(p.o, attn_at(&p.o, w.s.tensor, w.s.q_first + w.row, w.head, c), 0);
        }
    }
}

template <class S> __device__ __forceinline__ void consume(const attn_cuda_forward_params &a, const Memory<S> &memory)
{
    uint32_t number = 0, tiles = 0;
    if (S::TURNS && threadIdx.x / 128 == S::GROUPS) {
        ptx::barrier_arrive(1, 256); /* the first turn is the first group's */
    }
#pragma unroll 1
    for (uint32_t posts = 0;; posts++) {
        ptx::mbarrier_wait(memory.post_full(posts), parity(posts));
        const Post &post = memory.post(posts);
        if (post.end) {
            break;
        }
        if (post.blocks.count > 0) {
            Rows<S> rows;
            rows.state[0] = rows.state[1] = {-INFINITY, 0};
            note_bounds(a.problem, memory, post.item);
            run_blocks<S>(a.scale_log2, rows, memory, post.blocks, number, tiles++);
            finish_rows<S>(a, memory, post, rows);
            number += post.blocks.count;
        } else {
            finish_empty<S>(a.problem, post.item);
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            ptx::mbarrier_arrive(memory.post_empty(posts));
        }
    }
}
