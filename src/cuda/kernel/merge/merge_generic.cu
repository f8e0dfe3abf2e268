/*
 * merge_generic.cu: results over disjoint key ranges combined, and the gradients of that, on any
 * GPU from sm_80 on. A warp a row of a head. Parts are the leaves of the CPU's tree, with its
 * arithmetic (cpu/merge_parts.c, core/segment.h): weights in f64, sums in f32, or f64 where a
 * tensor is f64.
 */
#include "core/segment.h"
#include "cuda/kernel/rows/score.cuh"
#include "cuda/merge/params.h"

enum { ROWS = 8 }; /* of a CTA */

/* attn_cuda_merge_params with an array of PARTS. */
template <int PARTS> struct MergeParams {
    int64_t rows;
    int32_t parts, wide;
    attn_tensor o, lse;
    attn_cuda_merge_part part[PARTS];
};
static_assert(sizeof(MergeParams<ATTN_CUDA_MOST_PARTS>) == sizeof(attn_cuda_merge_params) &&
                  offsetof(MergeParams<ATTN_CUDA_FEW_PARTS>, part) ==
                      offsetof(attn_cuda_merge_params, part),
              "the host's struct begins like that of few parts");

/* A row's parts. */
template <int PARTS> struct MergeRow {
    double lse[PARTS];         /* of each part */
    double a[PARTS], b[PARTS]; /* of each join, in turn */
    double product[PARTS], weight[PARTS];
    const char *o[PARTS];
};

/* The result of leaves 0 .. n-1 of a tree whose parents have a power of two leaves on the left:
 * take(i) is leaf i, join(k, left, right) the k-th join. */
template <int PARTS, class Node, class Take, class Join>
__device__ __forceinline__ Node walk_tree(int n, const Take &take, const Join &join)
{
    constexpr int LEVELS = PARTS == ATTN_CUDA_FEW_PARTS ? 3 : 7;
    static_assert(1 << (LEVELS - 1) == PARTS, "a level each power of two");
    Node waiting[LEVELS], node = 0;
    int joins = 0;
    for (int i = 0; i < n; i++) {
        bool placed = false;
        node = take(i);
#pragma unroll
        for (int level = 0; level < LEVELS; level++) {
            const bool full = i >> level & 1;
            if (!placed && full) {
                node = join(joins++, waiting[level], node);
            } else if (!placed) {
                waiting[level] = node;
                placed = true;
            }
        }
    }
    bool first = true;
#pragma unroll
    for (int level = 0; level < LEVELS; level++) {
        if (n >> level & 1) {
            node = first ? waiting[level] : join(joins++, waiting[level], node);
            first = false;
        }
    }
    return node;
}

/* A row of a head. */
struct RowAt {
    int64_t b, i, h;

    __device__ __forceinline__ RowAt(int64_t row, const attn_tensor &o)
        : b(row / o.shape[2] / o.shape[1]), i(row / o.shape[2] % o.shape[1]), h(row % o.shape[2])
    {
    }
};

/* Fills the row's lse and o. */
template <int PARTS>
__device__ __forceinline__ void load_parts(MergeRow<PARTS> &row, const MergeParams<PARTS> &a,
                                           const RowAt &at)
{
    __syncwarp(); /* nobody reads the row before */
    for (int part = threadIdx.x % 32; part < a.parts; part += 32) {
        const attn_tensor &lse = a.part[part].lse;
        row.lse[part] =
            lse.data ? load_real<double>(attn_at(&lse, at.b, at.i, at.h, 0), lse.dtype) : 0;
        row.o[part] = attn_at(&a.part[part].o, at.b, at.i, at.h, 0);
    }
    __syncwarp();
}

/* The logarithm of the sum of all parts. Fills the row's a and b. */
template <int PARTS> __device__ __forceinline__ double join_parts(MergeRow<PARTS> &row, int parts)
{
    const double lse = walk_tree<PARTS, double>(
        parts, [&](int part) { return row.lse[part]; },
        [&](int k, double left, double right) {
            const attn_join join = attn_segment_join(left, 0, right, 0);
            if (threadIdx.x % 32 == 0) {
                row.a[k] = join.a, row.b[k] = join.b;
            }
            return join.lse;
        });
    __syncwarp();
    return lse;
}

template <class Real, int PARTS>
__device__ __forceinline__ void merge_columns(const MergeRow<PARTS> &row,
                                              const MergeParams<PARTS> &a, const RowAt &at)
{
    for (int64_t c = threadIdx.x % 32; c < a.o.shape[3]; c += 32) {
        const Real x = walk_tree<PARTS, Real>(
            a.parts,
            [&](int part) {
                const attn_tensor &o = a.part[part].o;
                const int64_t size = o.dtype == ATTN_F64 ? 8 : o.dtype == ATTN_F32 ? 4 : 2;
                return row.lse[part] == -INFINITY
                           ? (Real)0
                           : load_real<Real>(row.o[part] + c * o.stride[3] * size, o.dtype);
            },
            [&](int k, Real left, Real right) {
                return fma(right, (Real)row.b[k], left * (Real)row.a[k]);
            });
        store_real(a.o, at.b, at.i, at.h, c, x);
    }
}

/* Calls each(row, place, LSE) for every row of the warp, with the row's parts joined. */
template <int PARTS, class Each>
__device__ __forceinline__ void walk_rows(const MergeParams<PARTS> &a, const Each &each)
{
    __shared__ MergeRow<PARTS> rows[ROWS];
    MergeRow<PARTS> &row = rows[threadIdx.x / 32];
    for (int64_t index = (int64_t)blockIdx.x * ROWS + threadIdx.x / 32; index < a.rows;
         index += (int64_t)gridDim.x * ROWS) {
        const RowAt at(index, a.o);
        load_parts(row, a, at);
        const double lse = join_parts(row, a.parts);
        each(row, at, lse);
    }
}

template <int PARTS> __device__ __forceinline__ void merge(const MergeParams<PARTS> &a)
{
    walk_rows(a, [&](const MergeRow<PARTS> &row, const RowAt &at, double lse) {
        if (a.wide) {
            merge_columns<double>(row, a, at);
        } else {
            merge_columns<float>(row, a, at);
        }
        if (threadIdx.x % 32 == 0) {
            store_real(a.lse, at.b, at.i, at.h, 0, lse);
        }
    });
}

/* ---- gradients: d_o_p = w_p dO, d_lse_p = w_p (dO.o_p - dO.O + dLSE), w_p = exp(lse_p - LSE) - */

/* Fills the row's weights and products dO.o_p; returns their mean dO.O. A part with lse = -inf has
 * no influence. */
template <int PARTS>
__device__ __forceinline__ double weigh_parts(MergeRow<PARTS> &row, const MergeParams<PARTS> &a,
                                              const RowAt &at, double lse)
{
    double mean = 0;
    for (int part = 0; part < a.parts; part++) {
        const attn_tensor &o = a.part[part].o;
        if (row.lse[part] == -INFINITY) {
            continue;
        }
        double sum = 0;
        for (int64_t c = threadIdx.x % 32; c < o.shape[3]; c += 32) {
            sum += load_real<double>(attn_at(&a.o, at.b, at.i, at.h, c), a.o.dtype) *
                   load_real<double>(attn_at(&o, at.b, at.i, at.h, c), o.dtype);
        }
        sum = warp_sum(sum);
        const double weight = exp(row.lse[part] - lse);
        mean += weight * sum;
        if (threadIdx.x % 32 == 0) {
            row.weight[part] = weight, row.product[part] = sum;
        }
    }
    __syncwarp();
    return mean;
}

template <int PARTS>
__device__ __forceinline__ void store_gradients(const MergeRow<PARTS> &row,
                                                const MergeParams<PARTS> &a, const RowAt &at,
                                                double mean)
{
    const double d_lse =
        a.lse.data ? load_real<double>(attn_at(&a.lse, at.b, at.i, at.h, 0), a.lse.dtype) : 0;
    for (int part = 0; part < a.parts; part++) {
        const attn_cuda_merge_part &to = a.part[part];
        const bool empty = row.lse[part] == -INFINITY;
        for (int64_t c = threadIdx.x % 32; to.d_o.data && c < a.o.shape[3]; c += 32) {
            const double d_o = load_real<double>(attn_at(&a.o, at.b, at.i, at.h, c), a.o.dtype);
            store_real(to.d_o, at.b, at.i, at.h, c, empty ? 0.0 : row.weight[part] * d_o);
        }
        if (threadIdx.x % 32 == 0) {
            store_real(to.d_lse, at.b, at.i, at.h, 0,
                       empty ? 0.0 : row.weight[part] * (row.product[part] - mean + d_lse));
        }
    }
}

template <int PARTS> __device__ __forceinline__ void gradients(const MergeParams<PARTS> &a)
{
    walk_rows(a, [&](MergeRow<PARTS> &row, const RowAt &at, double lse) {
        store_gradients(row, a, at, weigh_parts(row, a, at, lse));
    });
}

#define ATTN_MERGE(name, parts)                                                     \
    extern "C" __global__ void __launch_bounds__(32 * ROWS)                         \
        attn_merge_##name(const __grid_constant__ MergeParams<parts> a)             \
    {                                                                               \
        merge(a);                                                                   \
    }                                                                               \
    extern "C" __global__ void __launch_bounds__(32 * ROWS)                         \
        attn_merge_##name##_gradients(const __grid_constant__ MergeParams<parts> a) \
    {                                                                               \
        gradients(a);                                                               \
    }
#include "cuda/kernels.inc"
