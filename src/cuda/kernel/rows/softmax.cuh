/*
 * softmax.cuh: the online softmax on accumulators of a warpgroup (layout: wgmma.cuh). A thread
 * holds two rows; a row lies in the four threads of a quad. Scores stay as they come from Q K^T; c
 * = scale log2(e) > 0 turns them into exponents of 2.
 *
 * A row's base, to which its exponents are relative, need not come from its maximum. It moves, and
 * earlier sums are scaled down, only when a score lies more than SLACK above the one that it came
 * from. In most blocks no score does, which their sums show: so probabilities are computed first,
 * and maxima only where a sum is too large. A row's base depends on the row's scores alone, not on
 * the way of its warp.
 */
#pragma once
#include "core/exp2.h"
#include "cuda/kernel/mma/mma.cuh"
#include <math.h>

constexpr float SLACK = 8; /* exponents of 2: relative to RAISED, P is at most 2^SLACK */
constexpr float SUSPECT =
    250; /* less than 2^SLACK, and more than 32 scores of no more than their base add up to */

/* How far a base lies below the score that it comes from. f16 has 11 digits down to 2^-14 and fewer
 * below, so P is raised there: to 2^15 at most, with all digits down to 2^-21 of that score's. */
template <int DTYPE> constexpr float RAISED = DTYPE == ATTN_F16 ? 7 : 0;

/* 2^x to 0.8 ulp for |x| <= 125. Where few keys weigh, the errors of their exponentials are those
 * of O; among many they cancel. */
__device__ __forceinline__ float exp2_within(float x)
{
    const float t = x + ATTN_EXP2_MAGIC_F32, n = t - ATTN_EXP2_MAGIC_F32;
    const float f = x - n, scale = __uint_as_float((__float_as_uint(t) + 127) << 23);
    float y = ATTN_EXP2_FIRST_F32;
#define ATTN_NEXT(coefficient) y = fmaf(y, f, coefficient);
    ATTN_EXP2_REST_F32(ATTN_NEXT)
#undef ATTN_NEXT
    return fmaf(y, f, 1) * scale;
}

/* The same, and as ptx::exp2 for other x. */
__device__ __forceinline__ float exp2_near(float x)
{
    return fabsf(x) <= 125 ? exp2_within(x) : ptx::exp2(x);
}

/* exp2_near, or ptx::exp2 for rows that are not near. Both are computed: scores with a branch each
 * would wait for each other. */
__device__ __forceinline__ float exp2_either(float x, bool near)
{
    const float exact = exp2_within(x), quick = ptx::exp2(x);
    return near && fabsf(x) <= 125 ? exact : quick;
}

/* Rows whose exponentials are so: none, those that have seen less than half a block, all. */
enum Near { NEAR_NONE, NEAR_FEW, NEAR_ALL };

/* The base of a row without a visible score: exponentials of visible scores become infinite, those
 * of masked ones 0. */
constexpr float NO_BASE = -3.4e38f;

/* Beyond it a base may be so far off that all of the row's probabilities are 0. */
constexpr float FAR_BASE = 4194304;

struct RowState {
    float base; /* of exponents of 2: c times a score at most SLACK / c below the largest so far,
                   less RAISED; NO_BASE: none seen */
    float l; /* sum of 2^(s c - base) over this thread's columns; 0 if none was visible. Its sign is
                a flag: negative until the row has seen half a block, which is too few keys to allow
                slack beside them */
    float m; /* largest score so far, where every block is looked at */
};

__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* How exponents of 2 follow from scores: x = c s - base, whatever the block. Others may have a
 * quick way that is not right for all scores. i: of the accumulators. */
struct Linear {
    float c;

    /* The summand of row r's exponents. */
    __device__ __forceinline__ float from(const RowState &state, int) const
    {
        return -state.base;
    }
    template <bool QUICK> __device__ __forceinline__ float exponent(float s, int, float from) const
    {
        return fmaf(s, c, from);
    }
    /* good: all quick exponents were right. beyond: quick exponents are known to be wrong. */
    __device__ __forceinline__ bool good() const
    {
        return true;
    }
    __device__ __forceinline__ bool beyond() const
    {
        return false;
    }
    template <int N> __device__ __forceinline__ float top(const float (&s)[N], int r) const;

    /* From a row's largest accumulator m: the base of its exponents, and its largest score in units
     * of scale_log2. */
    __device__ __forceinline__ float base(float m) const
    {
        return __fmul_rn(m, c);
    }
    __device__ __forceinline__ float score(float m, float) const
    {
        return m;
    }
};

/* The largest of row r's scores in this thread. Four chains let latencies overlap. */
template <int N> __device__ __forceinline__ float largest(const float (&s)[N], int r)
{
    float top[4] = {s[2 * r], s[2 * r + 1], s[2 * r + 4], s[2 * r + 5]};
#pragma unroll
    for (int i = 8 + 2 * r; i < N; i += 4) {
        top[i / 4 % 2 * 2] = fmaxf(top[i / 4 % 2 * 2], s[i]);
        top[i / 4 % 2 * 2 + 1] = fmaxf(top[i / 4 % 2 * 2 + 1], s[i + 1]);
    }
    return fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3]));
}

template <int N> __device__ __forceinline__ float Linear::top(const float (&s)[N], int r) const
{
    return largest(s, r);
}

/* Moves bases for these scores. Returns the factors of earlier sums and outputs: exactly 1 where a
 * base stays. few: a row sees few of the keys. */
template <int DTYPE, int N, class Exponents>
__device__ __forceinline__ void move_bases(const float (&s)[N], const Exponents &e,
                                           const bool (&few)[2], RowState (&state)[2],
                                           float (&alpha)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = quad_max(e.top(s, r)), base = e.base(m);
        state[r].m = fmaxf(state[r].m, e.score(m, base));
        base -= RAISED<DTYPE>;
        alpha[r] = 1;
        const bool begins = signbit(state[r].l);
        float l = fabsf(state[r].l);
        if (base - state[r].base > (begins ? 0 : SLACK)) {
            const float down = state[r].base - base;
            alpha[r] = DTYPE == ATTN_F32 && begins ? exp2_near(down) : ptx::exp2(down);
            state[r].base = base;
            l *= alpha[r];
        }
        state[r].l = begins && few[r] ? -l : l;
    }
}

/* Sums of a block's probabilities so far, over this thread's columns, in chains for each row. */
struct Chains {
    float of[2][4] = {};

    __device__ __forceinline__ float row(int r) const
    {
        return (of[r][0] + of[r][1]) + (of[r][2] + of[r][3]);
    }
};

/* Computes probabilities relative to base, packed as the A operand of P V: four words of each part
 * for a k-step of 16 keys; words FROM .. TO - 1. Words of P beyond the scores are 0. */
template <int DTYPE, bool QUICK, Near NEAR, int FROM, int TO, int PARTS, int N, int WORDS,
          class Exponents>
__device__ __forceinline__ void weigh_words(const float (&s)[N], Exponents &e,
                                            const RowState (&state)[2], uint32_t (&p)[PARTS][WORDS],
                                            Chains &chains)
{
    const float from[2] = {e.from(state[0], 0), e.from(state[1], 1)};
#pragma unroll
    for (int i = FROM; i < TO; i++) {
        const int r = i % 2, chain = i / 2 % 2 * 2;
        float x = 0, y = 0;
        if (i < N / 2) {
            x = e.template exponent<QUICK>(s[2 * i], 2 * i, from[r]);
            y = e.template exponent<QUICK>(s[2 * i + 1], 2 * i + 1, from[r]);
            if constexpr (NEAR == NEAR_FEW) {
                x = exp2_either(x, signbit(state[r].l)), y = exp2_either(y, signbit(state[r].l));
            } else {
                x = NEAR == NEAR_ALL ? exp2_near(x) : ptx::exp2(x);
                y = NEAR == NEAR_ALL ? exp2_near(y) : ptx::exp2(y);
            }
            chains.of[r][chain] += x;
            chains.of[r][chain + 1] += y;
        }
        if constexpr (PARTS == 1) {
            p[0][i] = ptx::pack_half<DTYPE == ATTN_BF16>(x, y);
        } else {
            uint32_t parts[3];
            mma::split(x, y, parts);
            p[0][i] = parts[0], p[1][i] = parts[1], p[2][i] = parts[2];
        }
    }
}

/* All words. sum: over this thread's columns. */
template <int DTYPE, bool QUICK, Near NEAR, int PARTS, int N, int WORDS, class Exponents>
__device__ __forceinline__ void exponentials(const float (&s)[N], Exponents &e,
                                             const RowState (&state)[2],
                                             uint32_t (&p)[PARTS][WORDS], float (&sum)[2])
{
    Chains chains;
    weigh_words<DTYPE, QUICK, NEAR, 0, WORDS>(s, e, state, p, chains);
    sum[0] = chains.row(0), sum[1] = chains.row(1);
}

/* True if some row of the warp has too few keys for slack. */
__device__ __forceinline__ bool any_begins(const RowState (&state)[2])
{
    return __any_sync(~0u, signbit(state[0].l) || signbit(state[1].l));
}

/* Computes probabilities with bases that stay, if no row begins, or (BEGIN) none of those that do
 * sees a key; words before DONE are there, and in chains. Returns false if some base of the warp's
 * rows may have to move; p is useless then. */
template <int DTYPE, int DONE = 0, bool BEGIN = false, int PARTS, int N, class Exponents>
__device__ __forceinline__ bool keep_bases(const float (&s)[N], Exponents &e, RowState (&state)[2],
                                           uint32_t (&p)[PARTS][N / 2], Chains chains = {})
{
    weigh_words<DTYPE, true, NEAR_NONE, DONE, N / 2>(s, e, state, p, chains);
    const float sum[2] = {chains.row(0), chains.row(1)};
    constexpr float most = DTYPE == ATTN_F16 ? SUSPECT * 128 : SUSPECT; /* 2^RAISED */
    const bool good = sum[0] < most && sum[1] < most && e.good();       /* false for NaN */
    if (__any_sync(~0u, !good)) {
        return false;
    }
    state[0].l += BEGIN ? copysignf(sum[0], state[0].l) : sum[0];
    state[1].l += BEGIN ? copysignf(sum[1], state[1].l) : sum[1];
    return true;
}

/* Computes probabilities after bases have moved. NEAR: of f32. */
template <int DTYPE, Near NEAR = NEAR_FEW, int PARTS, int N, int WORDS, class Exponents>
__device__ __forceinline__ void probabilities(const float (&s)[N], Exponents &e,
                                              RowState (&state)[2], uint32_t (&p)[PARTS][WORDS])
{
    float sum[2];
    if (DTYPE == ATTN_F32 && (NEAR == NEAR_ALL || any_begins(state))) {
        exponentials<DTYPE, false, NEAR>(s, e, state, p, sum);
    } else if (e.beyond()) {
        exponentials<DTYPE, false, NEAR_NONE>(s, e, state, p, sum);
    } else {
        exponentials<DTYPE, true, NEAR_NONE>(s, e, state, p, sum);
    }
    state[0].l += copysignf(sum[0], state[0].l);
    state[1].l += copysignf(sum[1], state[1].l);
}

template <int N> __device__ __forceinline__ void rescale(float (&o)[N], const float (&alpha)[2])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        o[i] *= alpha[i / 2 % 2];
    }
}

/* The same, if some base of the warp's rows has moved. */
template <int N>
__device__ __forceinline__ void rescale_moved(float (&o)[N], const float (&alpha)[2])
{
    if (__any_sync(~0u, alpha[0] != 1 || alpha[1] != 1)) {
        rescale(o, alpha);
    }
}
