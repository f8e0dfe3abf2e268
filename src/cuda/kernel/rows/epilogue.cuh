/*
 * epilogue.cuh: O = o / l, LSE and row maximum from the accumulators of a warpgroup, and the
 * careful path for rows that products cannot do: rows where 0 x V met a V that is not finite, or
 * where exponents left the range of f32.
 */
#pragma once
#include "core/kv.h"
#include "core/mask.h"
#include "core/segment.h"
#include "core/softmax.h"
#include "cuda/params.h"
#include "cuda/kernel/load/clean.cuh"
#include "cuda/kernel/rows/dropout.cuh"
#include "cuda/kernel/rows/score.cuh"
#include "cuda/kernel/rows/softmax.cuh"

constexpr float LN2 = 0.693147181f, LOG2_E = 1.44269504f;
constexpr double LN2_F64 = 0.693147180559945309;

__device__ __forceinline__ void store_wide(const attn_tensor &t, int64_t batch, int64_t row,
                                           int64_t head, float x)
{
    if (t.data != NULL) {
        void *to = attn_at(&t, batch, row, head, 0);
        if (t.dtype == ATTN_F64) {
            *(double *)to = x;
        } else {
            *(float *)to = x;
        }
    }
}

template <int DTYPE>
__device__ __forceinline__ void store_element(const attn_tensor &t, char *to, float x)
{
    if (t.dtype == ATTN_F32) {
        *(float *)to = x;
    } else {
        *(uint16_t *)to = (uint16_t)ptx::pack_half<DTYPE == ATTN_BF16>(x, 0);
    }
}

/* One output row: where it is. */
struct OutputRow {
    const attn_sequence &s;
    int head;
    int row;        /* within the sequence */
    bool seen;      /* any key visible */
    int column = 0; /* of O: the first one */
};

/* LSE from l, the sum of a row's probabilities relative to a base that lies `raised` below the
 * score that it comes from. The base is raised first: it might be large beside that score. */
__device__ __forceinline__ float natural_lse(float base, float l, float raised)
{
    return __fmul_rn(base + raised, LN2) + logf(raised == 0 ? l : ldexpf(l, -(int)raised));
}

/* Writes a row's statistics, max in natural units; base, l, raised as above. Returns the factors of
 * the accumulators: x, then y, since their product may be less than any float in rows far below
 * their sink. Beside a sink all is double: an error of its exponential is one of the whole row. */
__device__ __forceinline__ float2 finish_row(const attn_problem &p, const OutputRow &w, float base,
                                             float l, float max, float raised, bool write)
{
    double sink = -INFINITY;
    float lse = -INFINITY;
    float2 factors = make_float2(1, w.seen ? 1 / l : 0);
    if (attn_sequence_has_sink(&p, &w.s)) {
        const char *at = attn_at_broadcast(&p.sinks, w.s.index, w.head, 0, 0);
        sink = p.sinks.dtype == ATTN_F64 ? *(const double *)at : *(const float *)at;
    }
    if (sink != -INFINITY) {
        const double own = w.seen ? base * LN2_F64 + attn_ln(l) : -INFINITY;
        const attn_row_end end = attn_sink_divisor(own, 0, sink);
        const double nan = sink - sink; /* of a sink that is not finite */
        lse = (float)(attn_segment_join(own, 0, sink, 0).lse + nan);
        factors.x = end.far > 0 ? (float)(1 / end.far) : 1;
        const double divisor = (end.far > 0 ? end.far * factors.x : 1) * end.divisor * l;
        factors.y = w.seen && factors.x > 0 ? (float)(1 / divisor) : 0;
    } else if (w.seen && p.lse.data != NULL) {
        lse = natural_lse(base, l, raised);
    }
    if (write) {
        store_wide(p.lse, w.s.tensor, w.s.q_first + w.row, w.head, lse);
        store_wide(p.row_max, w.s.tensor, w.s.q_first + w.row, w.head, w.seen ? max : -INFINITY);
    }
    return factors;
}

/* Element c of key j in K or V. PAGED: it may lie in a page. */
template <bool PAGED>
__device__ __forceinline__ const char *key_at(const attn_problem &p, const attn_tensor &t,
                                              const attn_sequence &s, int kv_head, int64_t j, int c)
{
    return PAGED ? attn_kv_find(&p, &t, &s, kv_head, j, c) : attn_kv_at(&t, &s, kv_head, j, c);
}

/* Whether a row sees a value in V that is not finite, or that tiles of V do not hold (clean.cuh).
 * Head dims beyond 256: or in K, if that is where V is. The whole warp; slow, as careful_row. */
template <int DTYPE, int D, bool STEPS, bool PAGED>
__device__ __forceinline__ bool sees_nonfinite(const attn_cuda_forward_params &a,
                                               const OutputRow &w)
{
    const attn_problem &p = a.problem;
    const attn_tensor &t = D > 256 && p.v.data == p.k.data ? p.k : p.v;
    const int kv_head = w.head / (int)p.group, lane = ptx::opaque(threadIdx.x % 32);
    const attn_interval keys = attn_mask_row(&p, &w.s, w.row);
    const ScoreRow<float> score(p, w.s, w.head, w.row);
    bool found = false;
#pragma unroll 1
    for (int64_t j = keys.lo; j < keys.hi && !found; j++) {
        if (STEPS && a.steps && !(score.visible(j) && score.step(0, j) != -INFINITY)) {
            continue;
        }
#pragma unroll 1
        for (int c = lane; c < t.shape[3]; c += 32) {
            const float x = load_real<float>(key_at<PAGED>(p, t, w.s, kv_head, j, c), DTYPE);
            found |= is_beyond_parts(x);
        }
        found = __any_sync(~0u, found);
    }
    return found;
}

/* Sums of a row whose keys come one by one. In double, since a chain of floats loses a rounding a
 * key; the base moves as in the tile loop (softmax.cuh), since each move costs one of an exp2. */
template <int COLUMNS> struct CarefulSums {
    double o[COLUMNS] = {}, l = 0;
    float base = -INFINITY, most = -INFINITY; /* scores */

    /* Takes a key's score, of which `scale` makes an exponent of 2. Returns its probability,
     * relative to the base. */
    __device__ __forceinline__ double add(float score, float scale)
    {
        most = fmaxf(most, score);
        if ((score - base) * scale > SLACK) {
            const double alpha = ptx::exp2((base - score) * scale);
            base = score;
            l *= alpha;
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) {
                o[i] *= alpha;
            }
        }
        const double p = ptx::exp2((score - base) * scale);
        l += p;
        return p;
    }
    /* Writes the row's statistics, if `write`. Returns the factors of o. */
    __device__ __forceinline__ float2 finish(const attn_problem &p, OutputRow w, float scale,
                                             bool write) const
    {
        w.seen = l != 0; /* no key at all: every score was -inf */
        return finish_row(p, w, base * scale, (float)l, most * scale * LN2, 0, write);
    }
};

/* A whole row by one warp, visible keys only, one after the other; lane t has columns t, t + 32, ..
 * Slow: it is for rows whose data or exponents are out of the ordinary. D beyond 256: columns of O
 * from w.column on, as many as a group has. */
template <int DTYPE, int D, bool STEPS, bool PAGED, bool DROPS = false>
__device__ __forceinline__ void careful_row(const attn_cuda_forward_params &a, const OutputRow &w)
{
    constexpr int DV = D > 256 ? 256 : D;
    const attn_problem &p = a.problem;
    const int lane = ptx::opaque(threadIdx.x % 32), first = w.column + lane;
    const int kv_head = w.head / (int)p.group;
    const attn_interval keys = attn_mask_row(&p, &w.s, w.row);
    const ScoreRow<float> score(p, w.s, w.head, w.row);
    const float scale = STEPS && a.steps ? LOG2_E : a.scale_log2; /* of scores, or of products */
    constexpr int HELD = D > 256 ? 1 : D / 32; /* of q, in registers; else it is read again */
    float q[HELD];
    CarefulSums<DV / 32> sums;
    const auto load_q = [&](int c) {
        const char *at = attn_at(&p.q, w.s.tensor, w.s.q_first + w.row, w.head, c);
        return c < p.d ? load_real<float>(at, DTYPE) : 0;
    };
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        q[i] = load_q(lane + 32 * i);
    }
#pragma unroll 1
    for (int64_t j = keys.lo; j < keys.hi; j++) {
        float dot = 0;
#pragma unroll(HELD)
        for (int i = 0; i < D / 32; i++) {
            int c = lane + 32 * i;
            const char *at = key_at<PAGED>(p, p.k, w.s, kv_head, j, c);
            const float x = HELD > 1 ? q[i % HELD] : load_q(c);
            dot += c < p.d ? x * load_real<float>(at, DTYPE) : 0;
        }
#pragma unroll
        for (int x = 16; x > 0; x /= 2) {
            dot += __shfl_xor_sync(~0u, dot, x);
        }
        if (STEPS && a.steps) {
            dot = score.visible(j) ? score.step(dot, j) : -INFINITY;
        }
        if (dot == -INFINITY) {
            continue;
        }
        double e = sums.add(dot, scale);
        if constexpr (DROPS) {
            e *= DropoutRow(p, w.s, w.head, w.row).factor<double>(j);
        }
#pragma unroll
        for (int i = 0; i < DV / 32; i++) {
            int c = first + 32 * i;
            const char *at = key_at<PAGED>(p, p.v, w.s, kv_head, j, c);
            sums.o[i] += c < p.dv ? e * load_real<float>(at, DTYPE) : 0;
        }
    }
    const float2 factors = sums.finish(p, w, scale, lane == 0 && w.column == 0);
#pragma unroll
    for (int i = 0; i < DV / 32; i++) {
        int c = first + 32 * i;
        if (c < p.dv) {
            store_element<DTYPE>(p.o, attn_at(&p.o, w.s.tensor, w.s.q_first + w.row, w.head, c),
                                 (float)(sums.o[i] * factors.x * factors.y));
        }
    }
}

/* Words of row r (0, 1) of the accumulators, times factor, as 16-bit pairs: columns 32 g .. */
template <bool BF16, int N>
__device__ __forceinline__ void pack_quad(uint32_t (&x)[4], const float (&o)[N], int g, int r,
                                          float factor)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int at = 4 * (4 * g + i) + 2 * r;
        x[i] = ptx::pack_half<BF16>(o[at] * factor, o[at + 1] * factor);
    }
}

/* 4 x 4 words across a quad: word i of lane t becomes word t of lane i. */
__device__ __forceinline__ void transpose_quad(uint32_t (&x)[4])
{
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint32_t got = __shfl_xor_sync(~0u, odd ? x[i] : x[i + 1], 1);
        x[i] = odd ? got : x[i];
        x[i + 1] = odd ? x[i + 1] : got;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t got = __shfl_xor_sync(~0u, high ? x[i] : x[i + 2], 2);
        x[i] = high ? got : x[i];
        x[i + 2] = high ? x[i + 2] : got;
    }
}

/* Row r (0, 1) of the accumulators, times factor, to the row of O of `dv` columns that begins at
 * `to`: columns from `first` on. */
template <int DTYPE, int N>
__device__ __forceinline__ void store_elements(const attn_problem &p, const float (&o)[N], int r,
                                               float factor, char *to, int first, int dv)
{
    const int t = ptx::opaque(threadIdx.x % 4);
    const int64_t step = p.o.stride[3] * (p.o.dtype == ATTN_F32 ? 4 : 2);
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        int column = i / 2 * 8 + 2 * t + i % 2;
        if (column >= first && column < dv) {
            store_element<DTYPE>(p.o, to + column * step, o[i / 2 * 4 + i % 2 + 2 * r] * factor);
        }
    }
}

/* Writes the whole row, if `write`. All lanes must call. 16-bit elements are gathered into pieces
 * of 16 bytes within the quad, f32 elements go in pairs; elements that do not fit, or are not
 * aligned, go one by one. */
template <int DTYPE, int N>
__device__ __forceinline__ void store_row(const attn_problem &p, const float (&o)[N], int r,
                                          float factor, char *to, int dv, bool write)
{
    const int t = ptx::opaque(threadIdx.x % 4);
    const bool pairs = DTYPE == ATTN_F32 || p.o.dtype == ATTN_F32,
               dense = write && p.o.stride[3] == 1;
    const int piece = pairs ? 2 : 8,
              whole = dense && (uintptr_t)to % (pairs ? 8 : 16) == 0 ? dv / piece * piece : 0;
    if (__builtin_expect(write && whole < dv, false)) {
        store_elements<DTYPE>(p, o, r, factor, to, whole, dv);
    }
    if (pairs) {
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            if (8 * i + 2 * t < whole) {
                *(float2 *)(to + 32 * i + 8 * t) =
                    make_float2(o[4 * i + 2 * r] * factor, o[4 * i + 2 * r + 1] * factor);
            }
        }
    } else {
#pragma unroll
        for (int g = 0; g < N / 16; g++) {
            uint32_t x[4];
            pack_quad<DTYPE == ATTN_BF16>(x, o, g, r, factor);
            transpose_quad(x);
            if (32 * g + 8 * t < whole) {
                *(uint4 *)(to + 64 * g + 16 * t) = make_uint4(x[0], x[1], x[2], x[3]);
            }
        }
    }
}
