/*
 * single_sm90.cuh: forward_sm90 where all keys are one block (f32): one warpgroup reads 64 rows of
 * Q, straight into the registers of its products, and computes; the other one brings K and V. No
 * producer, rings and posts, whose beginnings take longer than such a problem; and little code,
 * since all of it runs once and comes from the L2. Products, masks and softmax are those of the
 * tile loop (consume_sm90.cuh), in the same order: so are the bits. Lengths, unaligned rows and odd
 * head dims are left to the tile loop (plan.c).
 */
#pragma once
#include "cuda/kernel/forward/consume_sm90.cuh"

/* The address of element `column` of row `row` of a sequence's head, computed once and not for each
 * access. */
__device__ __forceinline__ char *single_at(const attn_cuda_place &t, const Item &item, int head,
                                           int row, int column)
{
    return t.data + ptx::opaque_wide(item.sequence.tensor * t.batch + row * t.row + head * t.head +
                                     column * 4);
}

/* True if some row sees fewer keys than another. */
__device__ __forceinline__ bool uneven_band(const attn_band &band)
{
    return band.to < band.keys || band.from + band.rows > 1;
}

/* The CTA's item: grid (heads, sequences, blocks of rows). */
__device__ __forceinline__ Item single_item(const attn_cuda_forward_params &a)
{
    Item item = {};
    item.sequence = attn_problem_whole_sequence(&a.problem, blockIdx.y);
    item.sequence.nq = item.sequence.nq_used = a.single.band.rows; /* the same at hand */
    item.band = a.single.band;
    item.head = (int)blockIdx.x;
    item.first_row = blockIdx.z * 64;
    return item;
}

/* A thread's rows of Q, row and row + 8, on their way to the registers of its products. Beyond the
 * last row that one comes once more, whose O is not written. */
template <class S> struct FetchedQ {
    float2 x[S::D / 4]; /* two columns of row i % 2 */

    __device__ __forceinline__ void fetch(const attn_cuda_single &s, const Item &item, int row)
    {
        const int column = threadIdx.x % 4 * 2, last = s.band.rows - 1;
        const char *from[2] = {single_at(s.q, item, item.head, min(row, last), column),
                               single_at(s.q, item, item.head, min(row + 8, last), column)};
#pragma unroll
        for (int i = 0; i < S::D / 4; i++) {
            x[i] = make_float2(0, 0);
            if (column + i / 2 * 8 < s.d) {
                x[i] = *(const float2 *)(from[i % 2] + i / 2 * 32);
            }
        }
    }
    __device__ __forceinline__ void split(HeldQ<S> &q) const
    {
#pragma unroll
        for (int i = 0; i < S::D / 4; i++) {
            uint32_t parts[3];
            mma::split(x[i].x, x[i].y, parts);
            q.a[0][i / 4][i % 4] = parts[0], q.a[1][i / 4][i % 4] = parts[1],
                              q.a[2][i / 4][i % 4] = parts[2];
        }
    }
};

/* The second warpgroup's part: brings K, then V, to shared memory. The loads of V begin after K is
 * there: with both on their way ptxas splits V before it announces K. *nonfinite: V had to be
 * cleaned. */
template <class S>
__device__ __forceinline__ void single_keys(const attn_cuda_single &x, const Item &item, uint32_t k,
                                            uint32_t v, bool *nonfinite)
{
    const int kv_head = x.group == 1 ? item.head : item.head / x.group;
    const Fours<S::D, 128> fours(threadIdx.x % 128);
    Fetched<S::BN, S::D, 128> tile;
    const char *from = single_at(x.k, item, kv_head, 0, 0) + fours.row * x.k.row + fours.column * 4;
    tile.fetch_fours(fours, from, x.k.row, x.band.keys, fours.column < x.d);
    tile.template put<S::BN>(k);
    ptx::fence_proxy_async();
    ptx::barrier_arrive(1, 256);
    from = single_at(x.v, item, kv_head, 0, 0) + fours.row * x.v.row + fours.column * 4;
    tile.fetch_fours(fours, from, x.v.row, x.band.keys, fours.column < x.dv);
    if (uneven_band(x.band) && tile.clean()) {
        *nonfinite = true;
    }
    tile.template put<S::BN>(v);
    ptx::fence_proxy_async();
    ptx::barrier_arrive(2, 256);
}

/* The first warpgroup's part: S = Q K^T, softmax, O = P V. */
template <class S>
__device__ __forceinline__ void single_block(const attn_cuda_forward_params &a, const Item &item,
                                             int row, uint32_t k, uint32_t v, Rows<S::D> &rows)
{
    float s[S::BN / 2], alpha[2];
    uint32_t p[S::PARTS][S::BN / 4];
    bool few[2] = {false, false};
    int2 see[2];
    FetchedQ<S> fetched;
    HeldQ<S> q;
    fetched.fetch(a.single, item, row);
    rows.state[0] = rows.state[1] = {NO_BASE, -0.0f, -INFINITY};
    if (a.single.masked) {
        see[0] = seen_keys(item.band, row);
        see[1] = seen_keys(item.band, row + 8);
    }
    fetched.split(q);
#pragma unroll
    for (int i = 0; i < S::PARTS * S::D / 16; i++) { /* before the wait */
        wgmma::keep(q.a[i / (S::D / 16)][i % (S::D / 16)], row);
    }
    ptx::barrier_sync(1, 256); /* K is there */
    wgmma::fence();
    issue_qk<S, S::BN>(s, 0, q, operand_place(ptx::uniform(k)));
    wgmma::wait<0>();
    wgmma::hold(s);
    if (a.single.masked) {
        mask_scores(see, 0, s, few);
    }
    const Linear e = {a.scale_log2};
    move_bases<S::DTYPE>(s, e, few, rows.state, alpha);
    probabilities<S::DTYPE>(s, e, rows.state, p);
    ptx::barrier_sync(2, 256); /* V is there */
    Sum<S> sum(rows);
    wgmma::hold(p);
    wgmma::fence();
    issue_pv<S>(sum.o, p, v, 0);
    wgmma::wait<0>();
    wgmma::hold(sum.o);
    sum.add(rows);
}

/* Stores rows of O in pairs of elements. to: the thread's first one. */
struct SingleStore {
    char *to;
    int64_t row_bytes;
    int columns; /* columns from the thread's first one on */

    template <int N>
    __device__ __forceinline__ void rows(const Item &, const WarpRows &, const float (&o)[N],
                                         const float (&factor)[2], const bool (&write)[2],
                                         bool) const
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            char *row = to + r * 8 * row_bytes;
            if (write[r]) {
#pragma unroll
                for (int i = 0; i < N / 4; i++) {
                    if (8 * i < columns) {
                        *(float2 *)(row + 32 * i) = make_float2(o[4 * i + 2 * r] * factor[r],
                                                                o[4 * i + 2 * r + 1] * factor[r]);
                    }
                }
            }
        }
    }
};

template <class S> __device__ __forceinline__ void single(const attn_cuda_forward_params &a)
{
    extern __shared__ unsigned char shared[];
    const uint32_t base = ptx::shared_address(shared), k = base + (-base & 1023),
                   v = k + S::K_BYTES;
    static_assert(2 * S::K_BYTES + ATTN_SM90_ALIGN == ATTN_SINGLE_BYTES(S::DTYPE, S::D, S::BN),
                  "shape.h");
    __shared__ bool nonfinite;
    const bool uneven = uneven_band(a.single.band);
    if (uneven) {
        nonfinite = false;
        __syncthreads();
    }
    const Item item = single_item(a);
    if (threadIdx.x >= 128) {
        single_keys<S>(a.single, item, k, v, &nonfinite);
        return;
    }
    const int column = threadIdx.x % 4 * 2;
    const WarpRows warp = {(int)threadIdx.x / 32 * 16, NULL};
    const int row = (int)item.first_row + warp.first + threadIdx.x % 32 / 4;
    const SingleStore store = {single_at(a.single.o, item, item.head, row, column), a.single.o.row,
                               a.single.dv - column};
    Rows<S::D> rows;
    single_block<S>(a, item, row, k, v, rows);
    finish_rows<S::DTYPE, S::D, false, true>(a, item, true, uneven && nonfinite, warp, rows, store);
}
