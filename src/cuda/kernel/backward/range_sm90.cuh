/*
 * range_sm90.cuh: P and dS in f16. Its numbers have 11 digits from 2^-14 to 2^16 and fewer below,
 * so both are multiplied by powers of 2, which sums are divided by at the end:
 *
 *     P by 2^15, which P <= 1 allows
 *     dS by 2^k: 2^k D is in [2^9, 2^10), D the largest |dO_i| of the sequence and KV head. |dS| is
 *     at most |dO_i| |V_j - V_m| / 4, so none overflows unless |V_j - V_m| > 2^8 along dO_i; such a
 *     result is not finite, and its block is noted
 *
 * A number below 2^-14 is then off by at most 2^-25, and n of them cost no more than a key's other
 * roundings, 2^-11 of its terms, if its terms add up to n 2^-14. The kernels add up those of each
 * key until they are enough, and blocks with a key of smaller sums are noted. From 256 terms on 16
 * times their root is asked for: roundings go either way. Rows have |dO_i| times the largest |O_i|
 * for such a sum, or times their own |O_i|, if a sink or dropout may leave them light keys alone.
 * Softcap multiplies each dS by its derivative. So a row's size is also multiplied by a lower bound
 * of the sum of P times the derivative: half of 1 - capped, where capped sums P (1 - derivative) of
 * the elements whose derivative is below 1/2.
 *
 * A key's sum of |dS| answers for P too without dropout: times 2^(k - 15) |dP - delta| is at most 1
 * if |V_j - V_m| is 32 along dO_i, and such sums have that much to spare.
 *
 * D looks at rows that see keys, and at no V: what is masked has no influence.
 */
#pragma once
#include "cuda/backward/params.h"
#include "cuda/kernel/backward/items.cuh"
#include "cuda/kernel/ptx/ptx.cuh"
#include "cuda/kernel/rows/dropout.cuh"
#include <float.h>

/* Exponents: of the factor of P; of what the largest |dO_i| becomes. */
enum { LIFT = 15, PEAK = 9 };

/* Whether the keys that a row sees may all have small P. */
__device__ __forceinline__ bool may_be_alone(const attn_problem &p)
{
    return p.sinks.data != NULL || p.dropout.on;
}

/* Raises a peak, a number from 0 on. What the L1 cache has of it may be less. */
__device__ __forceinline__ void raise_peak(uint32_t *peak, float x)
{
    const uint32_t bits = __float_as_uint(x);
    if (*peak < bits) {
        ptx::atomic_max(peak, bits);
    }
}

/* The peaks of a sequence and KV head: |dO_i|, |O_i|. */
__device__ __forceinline__ uint32_t *peaks_of(const attn_cuda_backward_params &a, int64_t sequence,
                                              int64_t kv)
{
    return a.peaks + 2 * (sequence * a.grads.problem.kv_heads + kv);
}

/* Whether dropout drops all keys that row i of a sequence's head sees. */
__device__ __forceinline__ bool loses_all(const attn_problem &p, const attn_sequence &sequence,
                                          int64_t h, int64_t i)
{
    const attn_interval see = attn_mask_row(&p, &sequence, i);
    const DropoutRow drop(p, sequence, h, i);
    bool loses = p.dropout.on;
#pragma unroll 1
    for (int64_t key = see.lo; loses && key < see.hi; key++) {
        loses = !drop.keeps(key);
    }
    return loses;
}

/* Notes the sizes of a row of tensor batch b: `at` is its place among LSE. d_o, o: sums of squares.
 * One thread. */
__device__ __forceinline__ void note_sizes(const attn_cuda_backward_params &a, int64_t b, int64_t i,
                                           int64_t h, int64_t at, float lse, float d_lse, float d_o,
                                           float o)
{
    const attn_problem &p = a.grads.problem;
    const int64_t index = grad_sequence_of_row(p, b, i);
    const float size = sqrtf(d_o) + fabsf(d_lse) / 16;
    a.reach[at] = INFINITY; /* nothing is small */
    if (index < 0 || lse == -INFINITY || !(size > 0 && size < INFINITY)) {
        return;
    }
    bool used = true;
    if (attn_tensor_present(&p.used_q)) {
        const attn_sequence sequence = attn_problem_lengths(&p, index);
        used = i - sequence.q_first < sequence.nq_used;
    }
    if (used && o == 0 && d_lse == 0 && p.dropout.on) { /* then delta is 0 */
        const attn_sequence sequence = attn_problem_sequence(&p, index);
        used = !loses_all(p, sequence, h, i - sequence.q_first);
    }
    if (used) {
        uint32_t *const peaks = peaks_of(a, index, h / p.group);
        a.reach[at] = may_be_alone(p) ? size * sqrtf(o) : size;
        raise_peak(peaks, size);
        raise_peak(peaks + 1, o < INFINITY ? sqrtf(o) : 0);
    }
}

/* 2^e. */
__device__ __forceinline__ float power_of_2(int e)
{
    return __uint_as_float((uint32_t)(127 + e) << 23);
}

/* The k of dS; 2^k and 2^(k - LIFT) are normal numbers. */
__device__ __forceinline__ int score_exponent(const attn_cuda_backward_params &a, int64_t sequence,
                                              int64_t kv)
{
    const int e = (int)(*peaks_of(a, sequence, kv) >> 23) - 127;
    return e == -127 ? PEAK : max(min(PEAK - e, 127), LIFT - 126);
}

/* The least sum of n terms that small ones leave right. */
__device__ __forceinline__ float least_sum(float n)
{
    return 0x1p-14f * fminf(n, 16 * sqrtf(n));
}

/* The exponents of 2 of a row's LSE: of one by which P has its factor. */
template <bool BF16> __device__ __forceinline__ float lifted(float lse)
{
    return BF16 ? lse * 1.4426950408889634f : fmaf(lse, 1.4426950408889634f, -LIFT);
}

/* The factor that a kernel has for dP and delta: P has its own already. */
template <bool BF16>
__device__ __forceinline__ float score_unit(const attn_cuda_backward_params &a, int64_t sequence,
                                            int64_t kv)
{
    return BF16 ? 1 : power_of_2(score_exponent(a, sequence, kv) - LIFT);
}

/* Adds the four lanes of each key up. */
__device__ __forceinline__ float2 of_four_lanes(float2 sum)
{
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2) {
        sum.x += __shfl_xor_sync(~0u, sum.x, lanes);
        sum.y += __shfl_xor_sync(~0u, sum.y, lanes);
    }
    return sum;
}

/* Sums of the sizes of terms of a thread's two keys, in bf16: registers are few, and the range is
 * that of f32, so a sum is 0 only if there are no terms. ON: there are such sums. */
template <bool ON> struct KeyTerms {
    uint32_t both = 0;

    /* Terms of two rows: x of the first key, y of the second. */
    __device__ __forceinline__ void add(float x0, float x1, float y0, float y1)
    {
        if constexpr (ON) {
            both = ptx::add_halves<true>(both, ptx::pack_half<true>(fabsf(x0), fabsf(y0)));
            both = ptx::add_halves<true>(both, ptx::pack_half<true>(fabsf(x1), fabsf(y1)));
        }
    }
};

/* The sum of sizes of packed terms, one word in two from `first` on. It may be 0 because all terms
 * are too small. */
template <int N> __device__ __forceinline__ float packed_sizes(const uint32_t (&ds)[N], int first)
{
    uint32_t sum = ptx::absolute_halves(ds[first]);
#pragma unroll
    for (int i = first + 2; i < N; i += 2) {
        sum = ptx::add_halves<false>(sum, ptx::absolute_halves(ds[i]));
    }
    const float2 x = ptx::unpack_half<false>(sum);
    return x.x + x.y;
}

/* Sums of the terms of a thread's two keys in shared memory, since steps_sm90.cuh leaves no
 * register: of P, of |dS|. 256 threads from number 128 on. */
__device__ __forceinline__ float2 &shared_terms(int which)
{
    __shared__ float2 sums[2][256];
    return sums[which][ptx::thread() - 128];
}

__device__ __forceinline__ void add_terms(float2 &sum, float x, float y)
{
    sum = make_float2(sum.x + x, sum.y + y);
}

/* Rows of a head whose dS may be too small: reach times `weight` is below `least`. */
struct FaintRows {
    const float *reach;     /* of the sequence's first row */
    const uint32_t *capped; /* likewise, or NULL */
    float weight, least;

    __device__ __forceinline__ FaintRows(const attn_cuda_backward_params &a,
                                         const attn_sequence &sequence, int64_t head)
    {
        const attn_problem &p = a.grads.problem;
        const int64_t kv = head / p.group;
        const float other = __uint_as_float(peaks_of(a, sequence.index, kv)[1]);
        reach = a.reach + grad_row_place(p, sequence, head);
        capped = a.capped == NULL ? NULL : a.capped + grad_row_place(p, sequence, head);
        weight = power_of_2(score_exponent(a, sequence.index, kv)) * (may_be_alone(p) ? 1
                                                                      : other == 0    ? INFINITY
                                                                                      : other);
        least = least_sum((float)sequence.nk);
    }

    __device__ __forceinline__ bool has(int64_t row) const
    {
        /* capped adds up P rounded to f16, so a rest below 2^-8 may be rounding alone */
        const float left =
            capped == NULL ? 1 : fmaxf(0.5f - 0x1p-9f - 0x1p-25f * (float)capped[row], 0);
        return reach[row] * weight * left < least;
    }
};

/* Whether a key's sum of |dS|, or that of P, is too small. The band says how many terms they have;
 * there are none unless some row that it shows to the key has a dO to speak of, and of P none
 * unless such a row keeps the key. Lanes of four look at other rows. */
template <bool DROPS>
__device__ __forceinline__ bool is_faint_key(const attn_cuda_backward_params &a,
                                             const GradItem &item, const attn_band &band,
                                             int64_t key, float scores, float weights)
{
    const attn_problem &p = a.grads.problem;
    const uint32_t *const peaks = peaks_of(a, item.sequence.index, item.head);
    const int64_t first = max((int64_t)0, key - band.to + 1),
                  end = min(item.sequence.nq_used, key - band.from + 1);
    const float least = least_sum((float)((end - first) * p.group));
    if (key >= band.keys || !(scores < least || weights < least) || peaks[0] == 0 ||
        (peaks[1] == 0 && !may_be_alone(p))) {
        return false; /* peaks of 0: dS is 0 */
    }
    const bool any = !DROPS || scores < least || !p.dropout.on;
    for (int64_t h = item.head * p.group; h < (item.head + 1) * p.group; h++) {
        const float *const reach = a.reach + grad_row_place(p, item.sequence, h);
#pragma unroll 1
        for (int64_t row = first + ptx::thread() % 4; row < end; row += 4) {
            if (reach[row] < INFINITY && (any || DropoutRow(p, item.sequence, h, row).keeps(key))) {
                return true;
            }
        }
    }
    return false;
}

/* Adds |dS| of a tile to a thread's sums of them, unless those of the warp's keys, and of P, are
 * enough already, whatever comes. With any steps there is no register to say so. All lanes. */
template <class S, int N>
__device__ __forceinline__ void note_scores(const attn_cuda_backward_params &a,
                                            const GradItem &item, const uint32_t (&ds)[N],
                                            float2 &scores, bool &enough)
{
    const attn_problem &p = a.grads.problem;
    if (enough) {
        return;
    }
    add_terms(scores, packed_sizes(ds, 0), packed_sizes(ds, 1));
    if constexpr (!S::STEPPED) {
        const float least = least_sum((float)(item.sequence.nq_used * p.group));
        bool own = scores.x >= least && scores.y >= least;
        if constexpr (S::DROPS) {
            const float2 weights = shared_terms(0);
            const float least_weight = p.dropout.on ? least : FLT_MIN;
            own = own && weights.x >= least_weight && weights.y >= least_weight;
        }
        enough = __all_sync(~0u, own);
    }
}

/* Whether key `key` of the item or the key 8 behind has P or dS that are too small, by a thread's
 * sums of them for both. */
template <class S>
__device__ __forceinline__ bool has_faint_keys(const attn_cuda_backward_params &a,
                                               const GradItem &item, const attn_band &band,
                                               int64_t key, float2 own_scores, float2 own_weights)
{
    if constexpr (S::BF16) {
        return false;
    }
    const float2 scores = of_four_lanes(own_scores), weights = of_four_lanes(own_weights);
    const bool both = S::STEPPED || (S::LIGHT && a.grads.problem.dropout.on),
               seen = !S::DROPS || weights.x > 0, seen_8 = !S::DROPS || weights.y > 0;
    return (seen &&
            is_faint_key<S::DROPS>(a, item, band, key, scores.x, both ? weights.x : INFINITY)) ||
           (seen_8 &&
            is_faint_key<S::DROPS>(a, item, band, key + 8, scores.y, both ? weights.y : INFINITY));
}

/* Whether row `row` of the item or the row 8 below is faint. */
__device__ __forceinline__ bool has_faint_rows(const attn_cuda_backward_params &a,
                                               const GradItem &item, int row)
{
    const FaintRows faint(a, item.sequence, item.head);
    const int64_t first = item.first + row, used = item.sequence.nq_used;
    return (first < used && faint.has(first)) || (first + 8 < used && faint.has(first + 8));
}
