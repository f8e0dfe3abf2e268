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
 *     noted   the same of those blocks that kernels on tensor cores have noted
 *     scores  sums of dS for gradients of a bias or of slopes, and
 *     finish  sums of these sums (sums_generic.cuh)
 *
 * Results have 64 columns in a CTA; further columns are further CTAs, which compute P and g again.
 * Each block is summed afresh, then added once.
 */
#include "cuda/kernel/backward/range_sm90.cuh"
#include "cuda/kernel/backward/results_generic.cuh"
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

/* ---- items ----------------------------------------------------------------------------------- */

/* 64 columns of dK and dV of an item of keys. */
template <class Real>
__device__ __forceinline__ void keys_item(const attn_cuda_backward_params &a,
                                          const attn_cuda_grad_items &items, int64_t index,
                                          int piece)
{
    __shared__ GradItem item;
    share_item(item, a, items, index);
    if (!item.empty) {
        keys_results<Real>(a, item, piece * TILE);
    }
}

/* The same of dQ of an item of rows. */
template <class Real>
__device__ __forceinline__ void rows_item(const attn_cuda_backward_params &a,
                                          const attn_cuda_grad_items &items, int64_t index,
                                          int piece)
{
    __shared__ GradItem item;
    share_item(item, a, items, index);
    if (!item.empty) {
        rows_results<Real>(a, item, piece * TILE);
    }
}

template <class Real>
__device__ __forceinline__ void keys_generic(const attn_cuda_backward_params &a)
{
    keys_item<Real>(a, a.items, blockIdx.x / a.pieces, blockIdx.x % a.pieces);
}

template <class Real>
__device__ __forceinline__ void rows_generic(const attn_cuda_backward_params &a)
{
    rows_item<Real>(a, a.items, blockIdx.x / a.pieces, blockIdx.x % a.pieces);
}

/* Calls again(items, index, piece) for all columns of each noted item of keys or rows of this CTA's
 * share. */
template <class Again>
__device__ __forceinline__ void walk_notes(const attn_problem &p, bool keys,
                                           const unsigned char *bad, const Again &again)
{
    double all;
    const attn_cuda_grad_items items =
        attn_cuda_grad_items_of(&p, keys, keys ? p.kv_heads : p.heads, TILE, &all);
    const int64_t count = (int64_t)all;
    for (int64_t first = blockIdx.x; first < count; first += (int64_t)THREADS * gridDim.x) {
        const int64_t mine = first + (int64_t)threadIdx.x * gridDim.x;
        if (!__syncthreads_or(mine < count && bad[mine])) {
            continue; /* as a rule: all threads have looked, each at another note */
        }
        for (int i = 0; i < THREADS && first + (int64_t)i * gridDim.x < count; i++) {
            const int64_t note = first + (int64_t)i * gridDim.x;
            for (int piece = 0; bad[note] && piece < attn_cuda_grad_pieces(&p, keys); piece++) {
                again(items, note, piece);
            }
        }
    }
}

/* Results of noted blocks of keys and of rows. */
template <class Real>
__device__ __forceinline__ void noted_generic(const attn_cuda_backward_params &a)
{
    const attn_gradients &grads = a.grads;
    walk_notes(grads.problem, true, a.bad_keys,
               [&](const attn_cuda_grad_items &items, int64_t index, int piece) {
                   keys_item<Real>(a, items, index, piece);
               });
    if (grads.dq.data != NULL) {
        walk_notes(grads.problem, false, a.bad_rows,
                   [&](const attn_cuda_grad_items &items, int64_t index, int piece) {
                       rows_item<Real>(a, items, index, piece);
                   });
    }
}

/* ---- kernels --------------------------------------------------------------------------------- */

#define KERNEL(name, part, function, real)                                               \
    extern "C" __global__ __launch_bounds__(THREADS, 1) void attn_backward_##name##part( \
        const __grid_constant__ attn_cuda_backward_params a)                             \
    {                                                                                    \
        static_assert(sizeof(GradShared<real>) == ATTN_GRAD_BYTES(real), "shape.h");     \
        ptx::begin_next_launch();                                                        \
        ptx::wait_for_last_launch();                                                     \
        function<real>(a);                                                               \
    }
#define ATTN_BACKWARD_GENERIC(name, dtype, real) \
    KERNEL(name, _delta, delta_rows, real)       \
    KERNEL(name, _keys, keys_generic, real)      \
    KERNEL(name, _rows, rows_generic, real)      \
    KERNEL(name, _noted, noted_generic, real)    \
    KERNEL(name, _scores, scores_generic, real)  \
    KERNEL(name, _finish, finish_generic, real)
#include "cuda/kernels.inc"
