/*
 * tile_generic.cuh: one tile of P and dS, 64 rows x 64 keys, by 256 threads in plain CUDA C, in
 * float or double: what the kernels of backward_generic.cu have in common.
 *
 * S = Q K^T and dP = dO V^T in chunks of 32 of the head dim, each summed afresh, as on the CPU.
 * Then, with the delta of the row, dS = P (dP - delta) and g = dS times the derivative of the steps
 * between the product and the score. rows/square.cuh says which thread owns which scores.
 *
 * A masked position has P = dS = 0, and 0 times a value that is not finite is not 0. So an item
 * whose result is not finite is done again carefully: P of masked positions is -1 then, and their
 * products are left out.
 */
#pragma once
#include "cuda/kernel/backward/items.cuh"
#include "cuda/kernel/rows/dropout.cuh"
#include "cuda/kernel/rows/score.cuh"
#include "cuda/kernel/rows/square.cuh"
#include "cuda/shape.h"
#include <float.h>

enum { TILE = 64 };

template <class Real> struct GradShared {
    union {
        struct {
            Real left[CHUNK][PAD], right[CHUNK][PAD]; /* transposed operands of S and dP */
        };
        Real x[TILE][TILE]; /* rows that P or g multiply */
    };
    Real p[TILE][PAD], g[TILE][PAD];
    Real lse[TILE], delta[TILE];
};

template <class Real> __device__ __forceinline__ Real least_normal()
{
    return sizeof(Real) == 8 ? (Real)DBL_MIN : (Real)FLT_MIN;
}

/* Rows `first` .. of one head of a tensor, of which `rows` are there. */
struct GradRows {
    const attn_tensor &tensor;
    int64_t batch, first, head, rows;
};

template <class Real> struct GradTile {
    const attn_cuda_backward_params &a;
    const attn_problem &p;
    GradShared<Real> &t;
    const attn_sequence &sequence; /* place in shared memory */
    int64_t head;
    bool careful;
    int tx, ty;

    __device__ __forceinline__ GradTile(const attn_cuda_backward_params &a_,
                                        GradShared<Real> &shared, const attn_sequence &s)
        : a(a_), p(a_.grads.problem), t(shared), sequence(s), head(0), careful(false),
          tx(threadIdx.x % SIDE), ty(threadIdx.x / SIDE)
    {
    }

    /* Rows that are not in use may hold anything: they are not read. */
    __device__ __forceinline__ GradRows queries(const attn_tensor &tensor, int64_t row) const
    {
        return {tensor, sequence.tensor, sequence.q_first + row, head, sequence.nq_used - row};
    }
    __device__ __forceinline__ GradRows keys(const attn_tensor &tensor, int64_t key) const
    {
        return {tensor, sequence.tensor, sequence.k_first + key, head / p.group, sequence.nk - key};
    }

    /* Loads 64 rows of `width` columns from column c on, transposed or not; elements outside are
     * 0. */
    template <int WIDTH, bool TRANSPOSED, int LINE>
    __device__ __forceinline__ void load(Real (*to)[LINE], const GradRows &from, int64_t column)
    {
#pragma unroll(sizeof(Real) == 8 ? 1 : 2)
        for (int i = threadIdx.x; i < TILE * WIDTH; i += THREADS) {
            const int r = i / WIDTH, c = i % WIDTH;
            Real x = 0;
            if (r < from.rows && column + c < from.tensor.shape[3]) {
                x = load_real<Real>(
                    attn_at(&from.tensor, from.batch, from.first + r, from.head, column + c),
                    from.tensor.dtype);
            }
            (TRANSPOSED ? to[c][r] : to[r][c]) = x;
        }
    }

    /* Computes s = left right^T over all columns. */
    __device__ __forceinline__ void multiply(Real (&s)[EACH][EACH], const GradRows &left,
                                             const GradRows &right)
    {
#pragma unroll
        for (int i = 0; i < EACH * EACH; i++) {
            s[i / EACH][i % EACH] = 0;
        }
        for (int64_t column = 0; column < left.tensor.shape[3]; column += CHUNK) {
            Real part[EACH][EACH] = {};
            __syncthreads();
            load<CHUNK, true>(t.left, left, column);
            load<CHUNK, true>(t.right, right, column);
            __syncthreads();
            add_products<sizeof(Real) == 8 ? 1 : 2>(part, t.left, t.right, tx, ty);
#pragma unroll
            for (int i = 0; i < EACH * EACH; i++) {
                s[i / EACH][i % EACH] += part[i / EACH][i % EACH];
            }
        }
        __syncthreads();
    }

    /* Loads LSE and delta of 64 rows; those of rows outside are not used. */
    __device__ __forceinline__ void load_statistics(int64_t row)
    {
        __syncthreads();
        if (threadIdx.x < TILE && row + threadIdx.x < sequence.nq_used) {
            const int64_t at = grad_row_place(p, sequence, head) + row + threadIdx.x;
            t.lse[threadIdx.x] = ((const Real *)a.lse)[at];
            t.delta[threadIdx.x] = ((const Real *)a.delta)[at];
        }
    }

    /* Computes P and g of one position from the products S and dP. PLAIN: dS in place of g. */
    template <bool PLAIN>
    __device__ __forceinline__ void finish(const ScoreRow<Real> &score, const DropoutRow &drop,
                                           const attn_interval &see, int r, int c, int64_t key)
    {
        const Real product = t.p[r][c];
        Real x = -INFINITY, weight = 0;
        if (key >= see.lo && key < see.hi && score.visible(key)) {
            x = score.step(product, key);
        }
        if (x != (Real)-INFINITY) {
            const Real d = x - t.lse[r];
            weight = exp(d > 0 ? 0 : d);
        }
        const Real keep = drop.factor<Real>(key), dp = t.g[r][c] * keep - t.delta[r];
        const Real ds = weight < least_normal<Real>() ? 0 : weight * dp;
        t.p[r][c] = careful && x == (Real)-INFINITY ? -1 : weight * keep;
        t.g[r][c] = PLAIN || ds == 0 ? ds : ds * ((Real)p.scale * score_bend(p, product));
    }

    /* Puts P and g (or dS) of rows `row` .. and keys `key` .. in shared memory: this thread's
     * positions; those of others are there after a barrier. */
    template <bool PLAIN> __device__ __forceinline__ void run(int64_t row, int64_t key)
    {
        Real product[EACH][EACH];
        load_statistics(row);
        multiply(product, queries(p.q, row), keys(p.k, key));
        put(t.p, product);
        multiply(product, queries(a.grads.d_o, row), keys(p.v, key));
        put(t.g, product);
#pragma unroll 1
        for (int r = EACH * ty; r < EACH * ty + EACH; r++) {
            const attn_interval see = attn_mask_row(&p, &sequence, row + r);
            const ScoreRow<Real> score(p, sequence, (int)head, row + r);
            const DropoutRow drop(p, sequence, head, row + r);
#pragma unroll 1
            for (int c = tx; c < TILE; c += SIDE) {
                finish<PLAIN>(score, drop, see, r, c, key + c);
            }
        }
    }

    /* The dS of this thread's row i and key j after run<true>. */
    __device__ __forceinline__ Real mine(int i, int j) const
    {
        return t.g[EACH * ty + i][tx + SIDE * j];
    }

    __device__ __forceinline__ void put(Real (*to)[PAD], const Real (&x)[EACH][EACH])
    {
#pragma unroll
        for (int i = 0; i < EACH * EACH; i++) {
            to[EACH * ty + i / EACH][tx + i % EACH * SIDE] = x[i / EACH][i % EACH];
        }
    }
};
