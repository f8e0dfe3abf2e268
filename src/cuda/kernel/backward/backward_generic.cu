/*
 * backward_generic.cu: the backward pass for everything: any type, head dim, stride, mask, bias, on
 * any GPU from sm_80 on. Plain CUDA C, clarity before speed. Every output has one owner, so there
 * are no atomics, and sums have an order that depends on the sequence alone:
 *
 *     delta   a warp a row: LSE, and delta = dO.O - dLSE, of all rows
 *     keys    a CTA for 64 keys of a KV head:   for each head of the group, for each block of 64
 *             rows that see them:  P, g (tile_generic.cuh); dV += P^T dO, dK += g^T Q
 *     rows    a CTA for 64 rows of a query head: for each block of 64 keys that they see:
 *             P, g; dQ += g K
 *     scores  sums of dS for gradients of a bias or of slopes, and
 *     finish  sums of these sums (sums_generic.cuh)
 *
 * Results have 64 columns in a CTA; further columns are further CTAs, which compute P and g again.
 * Each block is summed afresh, then added once.
 */
#include "cuda/kernel/backward/range_sm90.cuh"
#include "cuda/kernel/backward/sums_generic.cuh"

/* ---- delta ----------------------------------------------------------------------------------- */

template <class Real> __device__ __forceinline__ void delta_rows(const attn_cuda_backward_params &a)
{
    const attn_problem &p = a.grads.problem;
    const attn_tensor &o = p.o, &d_o = a.grads.d_o;
    const int64_t index = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (index >= a.rows) {
        return;
    }
    const int64_t h = index % p.heads, i = index / p.heads % p.q.shape[1],
                  b = index / p.heads / p.q.shape[1], at = (b * p.heads + h) * p.q.shape[1] + i;
    Real sum = 0, d_o_size = 0, o_size = 0;
    for (int64_t c = lane; c < p.dv; c += 32) {
        const Real x = load_real<Real>(attn_at(&d_o, b, i, h, c), d_o.dtype),
                   y = load_real<Real>(attn_at(&o, b, i, h, c), o.dtype);
        sum = fma(x, y, sum), d_o_size = fma(x, x, d_o_size), o_size = fma(y, y, o_size);
    }
    sum = warp_sum(sum), d_o_size = warp_sum(d_o_size), o_size = warp_sum(o_size);
    if (lane == 0) {
        const Real lse = load_real<Real>(attn_at(&p.lse, b, i, h, 0), p.lse.dtype),
                   d_lse = load_d_lse<Real>(a.grads, b, i, h);
        /* no visible key: P = e^(S - inf) = 0 whatever S is */
        ((Real *)a.lse)[at] = lse == (Real)-INFINITY ? (Real)INFINITY : lse;
        ((Real *)a.delta)[at] = sum - d_lse;
        if (a.peaks != NULL) {
            note_sizes(a, b, i, h, at, (float)lse, (float)d_lse, (float)d_o_size, (float)o_size);
        }
    }
}

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

template <class Real> struct KeySums {
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

template <class Real>
__device__ __forceinline__ void keys_item(const attn_cuda_backward_params &a, int64_t index)
{
    extern __shared__ unsigned char shared[];
    const attn_gradients &grads = a.grads;
    const attn_problem &p = grads.problem;
    __shared__ GradItem item;
    share_item(item, p, a.items, index / a.pieces);
    const int64_t column = index % a.pieces * TILE;
    if (item.empty) {
        return;
    }
    GradTile<Real> tile(a, *(GradShared<Real> *)shared, item.sequence);
    KeySums<Real> sums;
    sums.run(tile, item, column);
    if (__syncthreads_or(!sums.dk.finite() || !sums.dv.finite())) {
        tile.careful = true;
        sums = KeySums<Real>();
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

template <class Real>
__device__ __forceinline__ void rows_item(const attn_cuda_backward_params &a, int64_t index)
{
    extern __shared__ unsigned char shared[];
    __shared__ GradItem item;
    share_item(item, a.grads.problem, a.items, index / a.pieces);
    const int64_t column = index % a.pieces * TILE;
    if (item.empty) {
        return;
    }
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

/* The items of this CTA in turn: its own one, or, with notes of backward_sm90, the noted ones of
 * its share. */
struct ItemWalk {
    const attn_cuda_backward_params &a;
    int64_t note; /* the next item of the share */
    int piece;    /* the next part of a noted item; all: the notes are read */

    __device__ __forceinline__ ItemWalk(const attn_cuda_backward_params &a_)
        : a(a_), note(blockIdx.x), piece(a.pieces)
    {
    }

    /* All threads look, each at another note, as long as none finds one. */
    __device__ __forceinline__ void skip_clear()
    {
        for (; note < a.notes; note += (int64_t)THREADS * gridDim.x) {
            const int64_t mine = note + (int64_t)threadIdx.x * gridDim.x;
            if (__syncthreads_or(mine < a.notes && a.bad[mine])) {
                return;
            }
        }
    }

    /* Returns false if there is none. */
    __device__ __forceinline__ bool next(int64_t *index)
    {
        if (a.bad == NULL) {
            *index = note;
            return piece++ == a.pieces;
        }
        if (piece == a.pieces) {
            skip_clear();
            while (note < a.notes && !a.bad[note]) {
                note += gridDim.x;
            }
            piece = 0;
        }
        const bool there = note < a.notes;
        *index = note * a.pieces + piece;
        note += ++piece == a.pieces ? gridDim.x : 0;
        return there;
    }
};

template <class Real>
__device__ __forceinline__ void keys_generic(const attn_cuda_backward_params &a)
{
    ItemWalk walk(a);
    for (int64_t index; walk.next(&index);) {
        keys_item<Real>(a, index);
    }
}

template <class Real>
__device__ __forceinline__ void rows_generic(const attn_cuda_backward_params &a)
{
    ItemWalk walk(a);
    for (int64_t index; walk.next(&index);) {
        rows_item<Real>(a, index);
    }
}

/* ---- kernels --------------------------------------------------------------------------------- */

#define KERNEL(name, part, function, real)                                               \
    extern "C" __global__ __launch_bounds__(THREADS, 1) void attn_backward_##name##part( \
        const __grid_constant__ attn_cuda_backward_params a)                             \
    {                                                                                    \
        static_assert(sizeof(GradShared<real>) == ATTN_GRAD_BYTES(real), "shape.h");     \
        function<real>(a);                                                               \
    }
#define ATTN_BACKWARD_GENERIC(name, dtype, real) \
    KERNEL(name, _delta, delta_rows, real)       \
    KERNEL(name, _keys, keys_generic, real)      \
    KERNEL(name, _rows, rows_generic, real)      \
    KERNEL(name, _scores, scores_generic, real)  \
    KERNEL(name, _finish, finish_generic, real)
#include "cuda/kernels.inc"
