/*
 * forward_generic.cuh: the forward pass for everything: any type, head dim, stride, mask, bias, on
 * any GPU from sm_80 on. Plain CUDA C, clarity before speed; forward_sm90.cu and forward_sm80.cu
 * are faster where they apply. Kernels are forward_generic.cu, and forward_codes.cu of quantised K
 * and V.
 *
 * A CTA of 256 threads does one item: 64 query rows of one head, 64 value columns (further columns
 * are further CTAs, which compute the scores again):
 *
 *     for each block of 64 keys that some row sees:
 *         S = Q K^T            in chunks of 32 of the head dim, each summed afresh, as on the CPU
 *         score step, mask     scale, softcap, bias, ALiBi; bool mask, intervals (core/mask.h)
 *         softmax              one warp per 8 rows; dropout
 *         O = O alpha + P V    the block summed afresh, then added once
 *
 * Shared memory: QT [32][65] | KT [32][65] | S [64][65] | V [64][64] | m, l, alpha [64].
 * rows/square.cuh says which thread owns which elements, and why 65. A masked position contributes
 * 0 x V. If that gave a non-finite result, the item is done again carefully: products with masked
 * keys are left out.
 */
#pragma once
#include "cuda/kernel/load/keys.cuh"
#include "cuda/kernel/schedule.cuh"
#include "cuda/kernel/rows/dropout.cuh"
#include "cuda/kernel/rows/score.cuh"
#include "cuda/kernel/rows/square.cuh"
#include "cuda/shape.h"

enum { ROWS = 64, KEYS = 64, COLUMNS = 64 };

template <class Real> struct Tile {
    Real qt[CHUNK][PAD], kt[CHUNK][PAD], s[ROWS][PAD], v[KEYS][COLUMNS];
    Real m[ROWS], l[ROWS], alpha[ROWS];
};

/* DTYPE: of Q. Keys: reads elements of K and V (load/keys.cuh). */
template <int DTYPE, class Real, class Keys> struct GenericRun {
    const attn_problem &p;
    const Keys &elements;
    Tile<Real> &t;
    const Item &item;
    int kv_head, first_column, tx, ty;
    bool careful;
    Real o[EACH][EACH];

    /* Loads a chunk of rows, transposed; elements outside are 0. element(row, column): a value. */
    template <class Element>
    __device__ __forceinline__ void load_transposed(Real (*to)[PAD], int64_t rows, int chunk,
                                                    const Element &element)
    {
        for (int i = threadIdx.x; i < ROWS * CHUNK; i += THREADS) {
            int r = i / CHUNK, c = i % CHUNK;
            bool inside = r < rows && chunk + c < p.d;
            to[c][r] = inside ? element(r, chunk + c) : 0;
        }
    }

    __device__ __forceinline__ void scores(int64_t key, int64_t keys)
    {
        const attn_sequence &sequence = item.sequence;
        Real s[EACH][EACH] = {};
        for (int chunk = 0; chunk < p.d; chunk += CHUNK) {
            Real part[EACH][EACH] = {};
            __syncthreads();
            load_transposed(t.qt, sequence.nq_used - item.first_row, chunk, [&](int r, int c) {
                const char *at = attn_at(&p.q, sequence.tensor,
                                         sequence.q_first + item.first_row + r, item.head, c);
                return load_real<Real>(at, DTYPE);
            });
            load_transposed(t.kt, keys, chunk, [&](int r, int c) {
                return elements.k(sequence, kv_head, key + r, c);
            });
            __syncthreads();
            add_products<sizeof(Real) == 8 ? 2 : 8>(part, t.qt, t.kt, tx, ty);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    s[i][j] += part[i][j];
                }
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int64_t row = item.first_row + EACH * ty + i;
            attn_interval see = attn_mask_row(&p, &item.sequence, row);
            const ScoreRow<Real> score(p, item.sequence, item.head, row);
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                int64_t at = key + tx + SIDE * j;
                bool in = at >= see.lo && at < see.hi && score.visible(at);
                t.s[EACH * ty + i][tx + SIDE * j] = in ? score.step(s[i][j], at) : (Real)-INFINITY;
            }
        }
        __syncthreads();
    }

    /* Softmax: a warp takes 8 rows, a lane two keys of each. Masked probabilities become -1 in a
     * careful run. */
    __device__ __forceinline__ void softmax(int64_t key)
    {
        int lane = threadIdx.x % 32;
        for (int r = threadIdx.x / 32 * 8; r < threadIdx.x / 32 * 8 + 8; r++) {
            Real s[2] = {t.s[r][lane], t.s[r][lane + 32]}, before = t.m[r];
            Real m = fmax(before, warp_max(fmax(s[0], s[1]))), base = m == (Real)-INFINITY ? 0 : m;
            Real e[2] = {exp(s[0] - base), exp(s[1] - base)}, sum = warp_sum(e[0] + e[1]);
            const DropoutRow drop(p, item.sequence, item.head, item.first_row + r);
            for (int i = 0; i < 2; i++) {
                const Real weight = e[i] * drop.factor<Real>(key + lane + 32 * i);
                t.s[r][lane + 32 * i] = careful && s[i] == (Real)-INFINITY ? -1 : weight;
            }
            __syncwarp(); /* all lanes have read m */
            if (lane == 0) {
                t.alpha[r] = exp(before - base);
                t.l[r] = t.l[r] * t.alpha[r] + sum;
                t.m[r] = m;
            }
            __syncwarp();
        }
    }

    __device__ __forceinline__ void values(int64_t key, int64_t keys)
    {
        for (int i = threadIdx.x; i < KEYS * COLUMNS; i += THREADS) {
            int r = i / COLUMNS, c = i % COLUMNS;
            bool inside = r < keys && first_column + c < p.dv;
            t.v[r][c] =
                inside ? elements.v(item.sequence, kv_head, key + r, first_column + c) : (Real)0;
        }
        __syncthreads();
        Real part[EACH][EACH] = {};
#pragma unroll(sizeof(Real) == 8 ? 2 : 4)
        for (int k = 0; k < KEYS; k++) {
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                Real e = t.s[EACH * ty + i][k];
                if (careful && e < 0) {
                    continue;
                }
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    part[i][j] = fma(e, t.v[k][tx + SIDE * j], part[i][j]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            Real alpha = t.alpha[EACH * ty + i];
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                o[i][j] = o[i][j] * alpha + part[i][j];
            }
        }
    }

    __device__ __forceinline__ void run_blocks(const attn_interval &hull)
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                o[i][j] = 0;
            }
        }
        __syncthreads();
        if (threadIdx.x < ROWS) {
            t.m[threadIdx.x] = -INFINITY, t.l[threadIdx.x] = 0;
        }
        __syncthreads();
        for (int64_t key = hull.lo / KEYS * KEYS; key < hull.hi; key += KEYS) {
            int64_t keys = min((int64_t)KEYS, item.sequence.nk - key);
            scores(key, keys);
            softmax(key);
            values(key, keys);
        }
        __syncthreads();
    }

    __device__ __forceinline__ bool finite() const
    {
        bool ok = true;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                ok &= isfinite(o[i][j]);
            }
        }
        return ok;
    }

    /* Writes the row's statistics. Returns the factor of O in two parts, the result and *second,
     * since O may be tiny beside a sink. */
    __device__ __forceinline__ Real finish_row(int r, Real *second)
    {
        const attn_sequence &s = item.sequence;
        Real max = t.m[r], l = t.l[r], sink = -INFINITY, lse = -INFINITY, half = 1;
        *second = 1 / l;
        if (attn_sequence_has_sink(&p, &s)) {
            sink = load_real<Real>(attn_at_broadcast(&p.sinks, s.index, item.head, 0, 0),
                                   p.sinks.dtype);
        }
        if (sink != (Real)-INFINITY) {
            Real top = fmax(sink, max);
            half = exp((max - top) / 2);
            Real sum = l * half * half + exp(sink - top);
            lse = top + log(sum);
            *second = half / sum;
        } else if (l != 0) {
            lse = max + log(l);
        }
        if (tx == 0 && first_column == 0) {
            int64_t row = s.q_first + item.first_row + r;
            store_real(p.lse, s.tensor, row, item.head, 0, lse);
            store_real(p.row_max, s.tensor, row, item.head, 0,
                       isnan(l) && max < (Real)INFINITY ? l : max);
        }
        return half;
    }

    __device__ __forceinline__ void store()
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int r = EACH * ty + i;
            if (item.first_row + r >= item.sequence.nq) {
                continue;
            }
            bool empty = t.l[r] == 0;
            Real second, first = finish_row(r, &second);
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                int c = first_column + tx + SIDE * j;
                if (c < p.dv) {
                    store_real(p.o, item.sequence.tensor,
                               item.sequence.q_first + item.first_row + r, item.head, c,
                               empty ? 0 : o[i][j] * first * second);
                }
            }
        }
    }
};

template <int DTYPE, class Real, class Keys>
__device__ __forceinline__ void forward_generic(const attn_cuda_forward_params &a,
                                                const Keys &elements)
{
    extern __shared__ unsigned char shared[];
    static_assert(sizeof(Tile<Real>) == ATTN_GENERIC_BYTES(Real), "shape.h");
    Tile<Real> &tile = *(Tile<Real> *)shared;
    const attn_problem &p = a.problem;
    const int pieces = max((int)((p.dv + COLUMNS - 1) / COLUMNS), 1);
    Item item;
    schedule_item(p, a.schedule, blockIdx.x / pieces, item);
    if (item.empty) {
        return;
    }
    attn_rows_mask mask =
        attn_mask_range(&p, &item.sequence, item.first_row, item.first_row + ROWS);
    GenericRun<DTYPE, Real, Keys> run = {p,
                                         elements,
                                         tile,
                                         item,
                                         item.head / (int)p.group,
                                         (int)(blockIdx.x % pieces) * COLUMNS,
                                         (int)threadIdx.x % SIDE,
                                         (int)threadIdx.x / SIDE,
                                         false};
    run.run_blocks(mask.hull);
    if (__syncthreads_or(!run.finite())) {
        run.careful = true;
        run.run_blocks(mask.hull);
    }
    run.store();
}
