/*
 * results_generic.cuh: dK and dV of 64 keys, or dQ of 64 rows, by the 256 threads of a CTA in plain
 * CUDA C, with 64 columns of each: the work of backward_generic.cu, and of a kernel that does heads
 * of its own again whose results are not finite (single_f32_sm90.cuh).
 */
#pragma once
#include "cuda/kernel/backward/tile_generic.cuh"

/* ---- results of 64 x 64 ---------------------------------------------------------------------- */

/* This thread's part of 64 rows or keys times 64 columns of a gradient. */
template <class Real> struct GradSum {
    Real sum[EACH][EACH];

    __device__ __forceinline__ GradSum()
    {
#pragma unroll
        for (int i = 0; i < EACH * EACH; i++) {
            sum[i / EACH][i % EACH] = 0;
        }
    }

    /* Adds weights times rows of x, from `column` on. The weight of row r and x's row k is at
     * [r][k], or with BY_KEYS at [k][r]. */
    template <bool BY_KEYS>
    __device__ __forceinline__ void add(GradTile<Real> &tile, const Real (&weights)[TILE][PAD],
                                        const GradRows &x, int64_t column)
    {
        GradShared<Real> &t = tile.t;
        Real part[EACH][EACH] = {};
        __syncthreads();
        tile.template load<TILE, false>(t.x, x, column);
        __syncthreads();
#pragma unroll(sizeof(Real) == 8 ? 1 : 2)
        for (int k = 0; k < TILE; k++) {
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const int r = EACH * tile.ty + i;
                const Real w = BY_KEYS ? weights[k][r] : weights[r][k];
                if (tile.careful && (BY_KEYS ? t.p[k][r] : t.p[r][k]) < 0) {
                    continue;
                }
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    part[i][j] = fma(w, t.x[k][tile.tx + SIDE * j], part[i][j]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < EACH * EACH; i++) {
            sum[i / EACH][i % EACH] += part[i / EACH][i % EACH];
        }
    }

    __device__ __forceinline__ bool finite() const
    {
        bool ok = true;
#pragma unroll
        for (int i = 0; i < EACH * EACH; i++) {
            ok &= isfinite(sum[i / EACH][i % EACH]);
        }
        return ok;
    }

    __device__ __forceinline__ void store(const GradTile<Real> &tile, const GradRows &to,
                                          int64_t column) const
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int r = EACH * tile.ty + i;
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                const int64_t c = column + tile.tx + SIDE * j;
                if (r < to.rows && c < to.tensor.shape[3]) {
                    store_real(to.tensor, to.batch, to.first + r, to.head, c, sum[i][j]);
                }
            }
        }
    }
};

/* ---- dK and dV ------------------------------------------------------------------------------- */

template <class Real> struct KeyResults {
    GradSum<Real> dk, dv;

    __device__ __forceinline__ void run(GradTile<Real> &tile, const GradItem &item, int64_t column)
    {
        const attn_gradients &grads = tile.a.grads;
        const attn_problem &p = grads.problem;
        const attn_interval rows = grad_rows_of_keys(p, item.sequence, item.first, TILE);
        for (int64_t n = 0; n < p.group; n++) {
            tile.head = item.head * p.group + n;
            for (int64_t row = rows.lo / TILE * TILE; row < rows.hi; row += TILE) {
                tile.template run<false>(row, item.first);
                if (grads.dv.data != NULL && column < p.dv) {
                    dv.template add<true>(tile, tile.t.p, tile.queries(grads.d_o, row), column);
                }
                if (grads.dk.data != NULL && column < p.d) {
                    dk.template add<true>(tile, tile.t.g, tile.queries(p.q, row), column);
                }
            }
        }
    }
};

/* dK and dV of an item, which lies in shared memory: 64 columns from `column` on. */
template <class Real>
__device__ __forceinline__ void keys_results(const attn_cuda_backward_params &a,
                                             const GradItem &item, int64_t column)
{
    extern __shared__ unsigned char shared[];
    const attn_gradients &grads = a.grads;
    GradTile<Real> tile(a, *(GradShared<Real> *)shared, item.sequence);
    KeyResults<Real> sums;
    sums.run(tile, item, column);
    if (__syncthreads_or(!sums.dk.finite() || !sums.dv.finite())) {
        tile.careful = true;
        sums = KeyResults<Real>();
        sums.run(tile, item, column);
    }
    const attn_sequence &s = item.sequence;
    const int64_t left = s.k_rows - item.first, first = s.k_first + item.first;
    sums.dk.store(tile, {grads.dk, s.tensor, first, item.head, left}, column);
    sums.dv.store(tile, {grads.dv, s.tensor, first, item.head, left}, column);
}

/* ---- dQ -------------------------------------------------------------------------------------- */

template <class Real>
__device__ __forceinline__ void run_rows(GradTile<Real> &tile, const GradItem &item, int64_t column,
                                         GradSum<Real> &dq)
{
    const attn_problem &p = tile.p;
    const attn_interval hull =
        attn_mask_range(&p, &item.sequence, item.first, item.first + TILE).hull;
    tile.head = item.head;
    for (int64_t key = hull.lo / TILE * TILE; key < hull.hi; key += TILE) {
        tile.template run<false>(item.first, key);
        dq.template add<false>(tile, tile.t.g, tile.keys(p.k, key), column);
    }
}

/* The same of dQ. */
template <class Real>
__device__ __forceinline__ void rows_results(const attn_cuda_backward_params &a,
                                             const GradItem &item, int64_t column)
{
    extern __shared__ unsigned char shared[];
    GradTile<Real> tile(a, *(GradShared<Real> *)shared, item.sequence);
    GradSum<Real> dq;
    run_rows(tile, item, column, dq);
    if (__syncthreads_or(!dq.finite())) {
        tile.careful = true;
        dq = GradSum<Real>();
        run_rows(tile, item, column, dq);
    }
    const attn_sequence &s = item.sequence;
    dq.store(tile, {a.grads.dq, s.tensor, s.q_first + item.first, item.head, s.nq - item.first},
             column);
}
