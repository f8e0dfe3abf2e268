/*
 * parts_sm90.cuh: f32 in three bf16 parts (kernel/mma/mma.cuh) for a backward pass on sm_90a: the
 * launch that splits Q and dO, and the shape of the kernel that multiplies
 * (ordered_f32_sm90.cuh). Parts lie in the workspace, [batch][head][part][row] of D columns, where
 * the TMA takes them; columns beyond the tensor's are 0. Each block of keys that meets the rows
 * would split them again, in registers that a loader does not have.
 */
#pragma once
#include "cuda/kernel/backward/clear_sm90.cuh"
#include "cuda/kernel/backward/shape_sm90.cuh"
#include "cuda/kernel/mma/mma.cuh"
#include "cuda/kernel/rows/score.cuh"

/* P and dS times 2^RAISE: parts of numbers from 2^-126 on are numbers of bf16 then. */
enum { RAISE = 24 };

/* As GradShape, with tiles of three parts, one tile of Q and one of dO. LSE stays as it is. */
template <int D_, int STEP_> struct PartsShape {
    static constexpr bool APART = false, BF16 = true, LIGHT = false, OUTSIDE = false,
                          ROUNDS = false, STEPPED = false, DROPS = false, HAS_SLOPES = false,
                          HAS_HEADS = false, DROPPED = false, TILED = false, WIDE = false,
                          STAYS = true, RESTS = false, HELPED = false, FOLLOWS = false;
    static constexpr int D = D_, STEP = STEP_, STAGES = 2, FIXED = 128, KEYS = FIXED,
                         BOX = ATTN_GRAD_BOX, COLUMNS = D;
    static constexpr int FIXED_PART = FIXED * D * 2, STEP_PART = STEP * D * 2,
                         SCORES_PART = FIXED * STEP * 2;
    static constexpr int FIXED_BYTES = 3 * FIXED_PART, STEP_BYTES = 3 * STEP_PART;
    static constexpr int STREAMED_AT = 2 * FIXED_BYTES, SCORES_AT = STREAMED_AT + 2 * STEP_BYTES,
                         SUMS_AT = SCORES_AT + 3 * SCORES_PART, SUMS_BYTES = STEP * D * 4,
                         BARRIERS_AT = SUMS_AT + SUMS_BYTES, STATISTICS_AT = BARRIERS_AT + 128;
    static constexpr float DOWN = 1.0f / (1 << RAISE);
    static_assert(STATISTICS_AT + STAGES * 2 * STEP * 4 + ATTN_SM90_ALIGN ==
                      ATTN_GRAD_PARTS_BYTES(D, STEP),
                  "shape.h");

    static __device__ __forceinline__ float statistic(float lse)
    {
        return lse;
    }
};

/* Four columns of a row; those beyond the last are 0. fours: the tensor is read so. */
__device__ __forceinline__ float4 load_four(const attn_tensor &t, int64_t b, int64_t i, int64_t h,
                                            int column, bool fours)
{
    const int columns = (int)t.shape[3];
    if (fours) {
        const float4 none = {0, 0, 0, 0};
        return column < columns ? *(const float4 *)attn_at(&t, b, i, h, column) : none;
    }
    float x[4];
#pragma unroll
    for (int c = 0; c < 4; c++) {
        x[c] =
            column + c < columns ? load_real<float>(attn_at(&t, b, i, h, column + c), t.dtype) : 0;
    }
    return make_float4(x[0], x[1], x[2], x[3]);
}

/* Stores parts of four columns of row i of a head, of `rows`. */
template <int D>
__device__ __forceinline__ void store_four(unsigned char *parts, int64_t head, int64_t rows,
                                           int64_t i, int column, const float4 &x)
{
    uint32_t low[3], high[3];
    mma::split(x.x, x.y, low);
    mma::split(x.z, x.w, high);
#pragma unroll
    for (int part = 0; part < 3; part++) {
        unsigned char *const row = parts + ((head * 3 + part) * rows + i) * (D * 2);
        *(uint2 *)(row + column * 2) = {low[part], high[part]};
    }
}

__device__ __forceinline__ float dot_four(const float4 &x, const float4 &y)
{
    return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, x.x * y.x)));
}

/* Adds up what so many neighbouring lanes have. */
template <int LANES> __device__ __forceinline__ float add_lanes(float sum)
{
#pragma unroll
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
        sum += __shfl_xor_sync(~0u, sum, lanes);
    }
    return sum;
}

/* LSE and delta = dO.O - dLSE of a row; a row without a visible key has P = e^(S - inf) = 0. */
__device__ __forceinline__ void row_statistics(const attn_cuda_backward_params &a, int64_t b,
                                               int64_t i, int64_t h, float sum, float &lse,
                                               float &delta)
{
    const attn_tensor &t = a.grads.problem.lse;
    lse = load_real<float>(attn_at(&t, b, i, h, 0), t.dtype);
    lse = lse == -INFINITY ? INFINITY : lse;
    delta = sum - load_d_lse<float>(a.grads, b, i, h);
}

/* LSE, delta = dO.O - dLSE, parts of Q and dO of all rows: D / 4 lanes a row. */
template <int D> __device__ __forceinline__ void split_rows(const attn_cuda_backward_params &a)
{
    constexpr int LANES = D / 4;
    const attn_problem &p = a.grads.problem;
    const int column = threadIdx.x % LANES * 4;
    const int64_t index = (int64_t)blockIdx.x * (256 / LANES) + threadIdx.x / LANES,
                  rows = p.q.shape[1], head = divide(index, rows), i = index - head * rows,
                  b = divide(head, p.heads), h = head - b * p.heads;
    const bool fours = a.aligned & ATTN_CUDA_ALIGNED_Q;
    float sum = 0;
    clear_words(a);
    if (index < a.rows) {
        const float4 d_o = load_four(a.grads.d_o, b, i, h, column, fours),
                     o = load_four(p.o, b, i, h, column, fours);
        sum = dot_four(d_o, o);
        store_four<D>(a.d_o_parts, head, rows, i, column, d_o);
        store_four<D>(a.q_parts, head, rows, i, column, load_four(p.q, b, i, h, column, fours));
    }
    sum = add_lanes<LANES>(sum);
    if (index < a.rows && column == 0) {
        row_statistics(a, b, i, h, sum, ((float *)a.lse)[index], ((float *)a.delta)[index]);
    }
}
