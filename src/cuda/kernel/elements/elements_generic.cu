/*
 * elements_generic.cu: tensors into codes and back, and the mask of dropout, on any GPU from sm_80
 * on, with the CPU's bits. A thread an element, or a byte of codes; a warp or a CTA a group that
 * shares a scale. CTAs take what there is in turns.
 */
#include "core/dropout.h"
#include "cuda/elements/params.h"
#include "cuda/kernel/load/encode.cuh"
#include "cuda/kernel/load/keys.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

/* Indices of every step-th element of a tensor, the last axis first. */
struct Walk {
    int64_t shape[4], at[4], by[4];
    int64_t left; /* elements from here on */
    int64_t step;

    __device__ __forceinline__ Walk(const int64_t (&shape_)[4], int64_t count, int64_t first,
                                    int64_t step_)
        : left(count - first), step(step_)
    {
        int64_t rest = first, strides = step_;
#pragma unroll
        for (int a = 3; a >= 0; a--) {
            shape[a] = shape_[a];
            at[a] = a > 0 ? rest % shape[a] : rest, rest /= shape[a];
            by[a] = a > 0 ? strides % shape[a] : strides, strides /= shape[a];
        }
    }
    __device__ __forceinline__ bool inside() const
    {
        return left > 0;
    }
    __device__ __forceinline__ void advance()
    {
        left -= step;
        int64_t carry = 0;
#pragma unroll
        for (int a = 3; a >= 0; a--) {
            at[a] += by[a] + carry;
            carry = a > 0 && at[a] >= shape[a];
            at[a] -= carry ? shape[a] : 0;
        }
    }
};

/* The elements of the launch that are this thread's. */
__device__ __forceinline__ Walk walk(const attn_tensor &tensor, int64_t count)
{
    return Walk(tensor.shape, count, (int64_t)blockIdx.x * THREADS + threadIdx.x,
                (int64_t)gridDim.x * THREADS);
}

__device__ __forceinline__ CodedRow row_of(const attn_quantized &t, int64_t i, int64_t j)
{
    return {t.x, t.codes, t.scale, t.shift, {i, j}, {i, j}};
}

/* ---- scales ---------------------------------------------------------------------------------- */

/* The range of every lanes-th element of the group of scale s. */
__device__ __forceinline__ attn_code_range read_group(const attn_quantized &t,
                                                      const int64_t (&s)[4], int lane, int lanes)
{
    int64_t first[4], shape[4], count = 1;
#pragma unroll
    for (int a = 0; a < 4; a++) {
        const int64_t each = a == 3                  ? t.x.shape[3] / t.scale.shape[3]
                             : t.scale.shape[a] == 1 ? t.x.shape[a]
                                                     : 1;
        first[a] = s[a] * each, shape[a] = each;
        count *= each;
    }
    attn_code_range range = attn_code_no_range();
    for (Walk w(shape, count, lane, lanes); w.inside(); w.advance()) {
        const CodedRow row = row_of(t, first[0] + w.at[0], first[1] + w.at[1]);
        const double x = row.element(first[2] + w.at[2], first[3] + w.at[3]);
        range = attn_code_join(range, attn_code_range_of(x));
    }
    return range;
}

__device__ __forceinline__ void write_scales(const attn_cuda_elements_params &a)
{
    __shared__ attn_code_range ranges[WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t first = a.wide ? blockIdx.x : (int64_t)blockIdx.x * WARPS + warp,
                  step = a.wide ? gridDim.x : (int64_t)gridDim.x * WARPS;
    for (Walk w(a.t.scale.shape, a.count, first, step); w.inside(); w.advance()) {
        attn_code_range range = warp_range(
            read_group(a.t, w.at, a.wide ? (int)threadIdx.x : lane, a.wide ? THREADS : 32));
        if (a.wide) {
            __syncthreads(); /* the last group's ranges have been read */
            if (lane == 0) {
                ranges[warp] = range;
            }
            __syncthreads();
            range = attn_code_no_range();
            for (int i = 0; i < WARPS; i++) {
                range = attn_code_join(range, ranges[i]);
            }
        }
        if (a.wide ? threadIdx.x == 0 : lane == 0) {
            row_of(a.t, w.at[0], w.at[1]).write_factors(range, w.at[2], w.at[3]);
        }
    }
}

/* ---- elements -------------------------------------------------------------------------------- */

__device__ __forceinline__ void write_codes(const attn_cuda_elements_params &a)
{
    const int64_t columns = row_of(a.t, 0, 0).group_columns();
    for (Walk w = walk(a.t.codes, a.count); w.inside(); w.advance()) {
        row_of(a.t, w.at[0], w.at[1]).write_codes(w.at[2], w.at[3], columns);
    }
}

__device__ __forceinline__ void write_values(const attn_cuda_elements_params &a)
{
    const attn_quantized &t = a.t;
    for (Walk w = walk(t.x, a.count); w.inside(); w.advance()) {
        const float value = load_coded(t.codes, t.scale, t.shift, {w.at[0], w.at[1]}, w.at[2],
                                       w.at[3], t.x.shape[3]);
        attn_code_store(attn_at(&t.x, w.at[0], w.at[1], w.at[2], w.at[3]), t.x.dtype, value);
    }
}

__device__ __forceinline__ void write_keep(const attn_cuda_elements_params &a)
{
    const attn_dropout &dropout = a.drop.dropout;
    const attn_tensor &keep = a.drop.keep;
    for (Walk w = walk(keep, a.count); w.inside(); w.advance()) {
        const int64_t b = w.at[0], h = w.at[1], row = attn_origin(&a.drop.q_origin, b) + w.at[2],
                      key = attn_origin(&a.drop.k_origin, b) + w.at[3];
        const uint64_t stream = attn_dropout_stream(&dropout, b, keep.shape[1], h);
        const uint32_t number = attn_dropout_number(&dropout, stream, (uint64_t)row, (uint64_t)key);
        *attn_at(&keep, b, h, w.at[2], w.at[3]) = number >= dropout.limit;
    }
}

#define ATTN_ELEMENTS(name, kind)                                               \
    extern "C" __global__ __launch_bounds__(THREADS) void attn_elements_##name( \
        const __grid_constant__ attn_cuda_elements_params a)                    \
    {                                                                           \
        write_##name(a);                                                        \
    }
#include "cuda/kernels.inc"
