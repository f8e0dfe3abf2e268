/*
 * sums_generic.cuh: gradients of a bias, of slopes and of sinks: sums of dS over whatever shares an
 * element, in double and in a fixed order, with tiles of dS computed for the purpose.
 *
 *     ELEMENTS  a bias with queries and keys: a CTA for 64 x 64 elements, which adds the tiles of
 *               all sequences and heads that share them
 *     BY_ROWS   a bias without keys: a CTA for 64 rows of a head adds the keys up, one sum for each
 *               row; finish adds those that share an element
 *     BY_KEYS   a bias without queries: likewise, one sum for each key of a query head
 *     SLOPES    as BY_ROWS, of -dS |i + off - j|
 *     SINKS     finish alone: -exp(sink - LSE) delta of the rows
 */
#pragma once
#include "cuda/kernel/backward/tile_generic.cuh"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* Stores a double in an element, rounded once. */
__device__ __forceinline__ void store_double(const attn_tensor &t, int64_t i0, int64_t i1,
                                             int64_t i2, int64_t i3, double x)
{
    if (t.dtype == ATTN_F16) {
        *(__half *)attn_at(&t, i0, i1, i2, i3) = __double2half(x);
    } else if (t.dtype == ATTN_BF16) {
        *(__nv_bfloat16 *)attn_at(&t, i0, i1, i2, i3) = __double2bfloat16(x);
    } else {
        store_real(t, i0, i1, i2, i3, x);
    }
}

/* ---- an element for each score --------------------------------------------------------------- */

/* Adds the tiles that lie on elements (row, key) .. of every sequence and head that share them. */
template <class Real>
__device__ __forceinline__ void add_elements(const attn_cuda_backward_params &a, attn_interval b,
                                             attn_interval h, int64_t row, int64_t key,
                                             double (&sum)[EACH][EACH])
{
    extern __shared__ unsigned char shared[];
    const attn_problem &p = a.grads.problem;
    __shared__ attn_sequence sequence;
    for (int64_t bb = b.lo; bb < b.hi; bb++) {
        __syncthreads();
        if (threadIdx.x == 0) {
            sequence = attn_problem_sequence(&p, bb);
        }
        __syncthreads();
        const attn_interval hull = attn_mask_range(&p, &sequence, row, row + TILE).hull;
        if (row >= sequence.nq_used || key >= hull.hi || key + TILE <= hull.lo) {
            continue;
        }
        GradTile<Real> tile(a, *(GradShared<Real> *)shared, sequence);
        for (tile.head = h.lo; tile.head < h.hi; tile.head++) {
            tile.template run<true>(row, key);
#pragma unroll
            for (int i = 0; i < EACH * EACH; i++) {
                sum[i / EACH][i % EACH] += (double)tile.mine(i / EACH, i % EACH);
            }
        }
    }
}

template <class Real> __device__ __forceinline__ void elements(const attn_cuda_backward_params &a)
{
    const attn_problem &p = a.grads.problem;
    const attn_tensor &out = a.sum.out;
    const int64_t across = (out.shape[3] + TILE - 1) / TILE,
                  down = (out.shape[2] + TILE - 1) / TILE, index = blockIdx.x,
                  head = index / across / down;
    const int64_t b = head / out.shape[1], h = head % out.shape[1];
    const int64_t row = index / across % down * TILE, key = index % across * TILE;
    double sum[EACH][EACH] = {};
    add_elements<Real>(a, grad_sharing(out.shape[0], p.batch, b),
                       grad_sharing(out.shape[1], p.heads, h), row, key, sum);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int64_t r = row + threadIdx.x / SIDE * EACH + i;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int64_t c = key + threadIdx.x % SIDE + SIDE * j;
            if (r < out.shape[2] && c < out.shape[3]) {
                store_double(out, b, h, r, c, sum[i][j]);
            }
        }
    }
}

/* ---- a sum for each row, or for each key ----------------------------------------------------- */

/* Threads (ty, tx) hold parts of the sums of rows 4 ty + i, shares by tx. */
__device__ __forceinline__ void store_row_sums(double *room, const double (&sum)[EACH], double *to,
                                               int64_t left)
{
    const int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    __syncthreads();
    for (int i = 0; i < EACH; i++) {
        room[(EACH * ty + i) * SIDE + tx] = sum[i];
    }
    __syncthreads();
    if (threadIdx.x < TILE && threadIdx.x < left) {
        double all = 0;
        for (int i = 0; i < SIDE; i++) {
            all += room[threadIdx.x * SIDE + i];
        }
        to[threadIdx.x] = all;
    }
}

/* The same with sums of keys tx + 16 j, shares by ty. */
__device__ __forceinline__ void store_key_sums(double *room, const double (&sum)[EACH], double *to,
                                               int64_t left)
{
    const int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    __syncthreads();
    for (int j = 0; j < EACH; j++) {
        room[ty * TILE + tx + SIDE * j] = sum[j];
    }
    __syncthreads();
    if (threadIdx.x < TILE && threadIdx.x < left) {
        double all = 0;
        for (int i = 0; i < SIDE; i++) {
            all += room[i * TILE + threadIdx.x];
        }
        to[threadIdx.x] = all;
    }
}

template <class Real>
__device__ __forceinline__ void row_sums(const attn_cuda_backward_params &a, const GradItem &item,
                                         GradTile<Real> &tile)
{
    extern __shared__ unsigned char shared[];
    const attn_problem &p = a.grads.problem;
    const attn_interval hull =
        attn_mask_range(&p, &item.sequence, item.first, item.first + TILE).hull;
    double sum[EACH] = {};
    for (int64_t key = hull.lo / TILE * TILE; key < hull.hi; key += TILE) {
        tile.template run<true>(item.first, key);
        for (int i = 0; i < EACH; i++) {
            const int64_t position = item.first + EACH * tile.ty + i + item.sequence.diagonal;
            for (int j = 0; j < EACH; j++) {
                const int64_t far = position - (key + tile.tx + SIDE * j);
                const double weight = a.sum.kind == ATTN_CUDA_SLOPES ? -fabs((double)far) : 1;
                const double ds = (double)tile.mine(i, j);
                sum[i] += ds == 0 ? 0 : weight * ds;
            }
        }
    }
    double *to = a.sum.partial + grad_row_place(p, item.sequence, item.head) + item.first;
    store_row_sums((double *)shared, sum, to, item.sequence.nq - item.first);
}

template <class Real>
__device__ __forceinline__ void key_sums(const attn_cuda_backward_params &a, const GradItem &item,
                                         GradTile<Real> &tile)
{
    extern __shared__ unsigned char shared[];
    const attn_problem &p = a.grads.problem;
    const attn_interval rows = grad_rows_of_keys(p, item.sequence, item.first, TILE);
    double sum[EACH] = {};
    for (int64_t row = rows.lo / TILE * TILE; row < rows.hi; row += TILE) {
        tile.template run<true>(row, item.first);
        for (int i = 0; i < EACH * EACH; i++) {
            sum[i % EACH] += (double)tile.mine(i / EACH, i % EACH);
        }
    }
    const int64_t place = (item.sequence.tensor * p.heads + item.head) * p.k.shape[1];
    store_key_sums((double *)shared, sum,
                   a.sum.partial + place + item.sequence.k_first + item.first,
                   item.sequence.k_rows - item.first);
}

template <class Real>
__device__ __forceinline__ void scores_generic(const attn_cuda_backward_params &a)
{
    if (a.sum.kind == ATTN_CUDA_ELEMENTS) {
        elements<Real>(a);
        return;
    }
    extern __shared__ unsigned char shared[];
    __shared__ GradItem item;
    share_item(item, a, a.items, blockIdx.x);
    if (item.empty) {
        return;
    }
    GradTile<Real> tile(a, *(GradShared<Real> *)shared, item.sequence);
    tile.head = item.head;
    if (a.sum.kind == ATTN_CUDA_BY_KEYS) {
        key_sums<Real>(a, item, tile);
    } else {
        row_sums<Real>(a, item, tile);
    }
}

/* ---- sums of sums ---------------------------------------------------------------------------- */

/* Computes -exp(sink - LSE) delta of a row. Rows not in use have O = 0, whatever dO holds. */
template <class Real>
__device__ __forceinline__ double sink_term(const attn_cuda_backward_params &a,
                                            const attn_sequence &s, int64_t h, int64_t i,
                                            double sink)
{
    const attn_problem &p = a.grads.problem;
    const attn_tensor &d_lse = a.grads.d_lse;
    double delta = 0;
    if (i < s.nq_used) {
        delta = (double)((const Real *)a.delta)[grad_row_place(p, s, h) + i];
    } else if (d_lse.data != NULL) {
        delta = -load_real<double>(attn_at(&d_lse, s.tensor, s.q_first + i, h, 0), d_lse.dtype);
    }
    const double lse =
        load_real<double>(attn_at(&p.lse, s.tensor, s.q_first + i, h, 0), p.lse.dtype);
    return -exp(sink - lse) * delta;
}

/* Adds this thread's share of the terms that element (i, j) has of one sequence and head. */
template <class Real>
__device__ __forceinline__ double add_terms(const attn_cuda_backward_params &a,
                                            const attn_sequence &s, int64_t h, int64_t i, int64_t j)
{
    const attn_problem &p = a.grads.problem;
    const attn_tensor &out = a.sum.out;
    double sum = 0;
    if (a.sum.kind == ATTN_CUDA_SINKS) {
        const double sink =
            load_real<double>(attn_at_broadcast(&p.sinks, s.index, h, 0, 0), p.sinks.dtype);
        for (int64_t n = threadIdx.x; n < s.nq && sink != -INFINITY; n += THREADS) {
            sum += sink_term<Real>(a, s, h, n, sink);
        }
        return sum;
    }
    const bool keys = a.sum.kind == ATTN_CUDA_BY_KEYS;
    const attn_interval n =
        keys ? grad_sharing(out.shape[3], s.nk, j) : grad_sharing(out.shape[2], s.nq_used, i);
    const int64_t last = min(n.hi, keys ? s.nk : s.nq_used);
    const double *from = a.sum.partial + (keys ? (s.tensor * p.heads + h) * p.k.shape[1] + s.k_first
                                               : grad_row_place(p, s, h));
    for (int64_t at = n.lo + threadIdx.x; at < last; at += THREADS) {
        sum += from[at];
    }
    return sum;
}

/* Sums an element with a CTA: sequences, heads, then shares of threads in a tree. */
template <class Real>
__device__ __forceinline__ void finish_generic(const attn_cuda_backward_params &a)
{
    __shared__ double shares[THREADS];
    const attn_problem &p = a.grads.problem;
    const attn_tensor &out = a.sum.out;
    int64_t index = blockIdx.x;
    const int64_t j = index % out.shape[3], i = index / out.shape[3] % out.shape[2];
    index /= out.shape[3] * out.shape[2];
    const int64_t b = index / out.shape[1], h = index % out.shape[1];
    /* rows outside every sequence have a sink, too */
    const attn_interval all = grad_sharing(
        out.shape[0], a.sum.kind == ATTN_CUDA_SINKS ? attn_problem_sequences(&p) : p.batch, b);
    const attn_interval heads = grad_sharing(out.shape[1], p.heads, h);
    double sum = 0;
    for (int64_t bb = all.lo; bb < all.hi; bb++) {
        const attn_sequence sequence = attn_problem_sequence(&p, bb);
        for (int64_t hh = heads.lo; hh < heads.hi; hh++) {
            sum += add_terms<Real>(a, sequence, hh, i, j);
        }
    }
    shares[threadIdx.x] = sum;
    __syncthreads();
    for (int width = THREADS / 2; width > 0; width /= 2) {
        if (threadIdx.x < width) {
            shares[threadIdx.x] += shares[threadIdx.x + width];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        store_double(out, b, h, i, j, shares[0]);
    }
}
