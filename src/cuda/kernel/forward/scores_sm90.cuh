/*
 * scores_sm90.cuh: softcap alone, or ALiBi alone, as part of the exponents (softmax.cuh), so that a
 * step costs an exponential's neighbours in the instruction stream, and no pass of its own over the
 * scores. Lengths, windows, heads folded into rows and splits of the keys are those of the plain
 * kernels; all other steps have kernels that ask for each of them (steps_sm90.cuh).
 *
 *     softcap   x = s P(s^2) - base; P as softcap.cuh has it, with all factors in its coefficients.
 *               A block with a score beyond P's range is done again, and so are the blocks after
 *               it, until one has none: then each score has P or the exponential
 *     ALiBi     x = c s + slope column + (start - base); start: of the row and the block. Where a
 *               block lies right of a row, slope and start change signs; where keys on both sides
 *               of the row's own position are in a block, products of those right of it are moved
 *               before
 */
#pragma once
#include "cuda/kernel/forward/steps_sm90.cuh"
#include "cuda/kernel/ptx/larger.cuh"
#include <float.h>

/* ---- softcap --------------------------------------------------------------------------------- */

struct CappedExponents {
    const attn_cuda_steps &x;
    uint32_t widest = 0; /* the largest square of a score, as bits */
    bool far = false;    /* some score of the warp is beyond the polynomial's range */

    __device__ __forceinline__ explicit CappedExponents(const attn_cuda_steps &x_) : x(x_)
    {
    }
    __device__ __forceinline__ float from(const RowState &state, int) const
    {
        return -state.base;
    }
    __device__ __forceinline__ float factor(float square) const
    {
        float p = x.cap[4];
#pragma unroll
        for (int i = 3; i >= 0; i--) {
            p = fmaf(p, square, x.cap[i]);
        }
        return p;
    }
    /* Beyond the polynomial's range. */
    __device__ __forceinline__ float outside(float s) const
    {
        const float r = ptx::reciprocal_rough(ptx::exp2(fabsf(s) * x.far_scale) + 1);
        return copysignf(fmaf(r, -2 * x.cap_far, x.cap_far), s);
    }
    template <bool QUICK> __device__ __forceinline__ float exponent(float s, int, float from)
    {
        const float square = s * s, y = fmaf(s, factor(square), from);
        widest = max(widest, __float_as_uint(square));
        if (QUICK) {
            return y; /* -inf of -inf, since the last coefficient is positive */
        }
        const float z = ptx::select(square > x.cap_most, outside(s) + from, y);
        return s == -INFINITY ? s : z; /* masked */
    }
    __device__ __forceinline__ bool good() const
    {
        return widest <= __float_as_uint(x.cap_most);
    }
    __device__ __forceinline__ bool beyond() const
    {
        return far;
    }
    template <int N> __device__ __forceinline__ float top(const float (&s)[N], int r) const
    {
        return largest(s, r);
    }
    __device__ __forceinline__ float base(float m) const
    {
        const float square = m * m, y = square > x.cap_most ? outside(m) : m * factor(square);
        return m == -INFINITY ? m : y;
    }
    __device__ __forceinline__ float score(float, float base) const
    {
        return base * LN2;
    }
};

template <class S> struct Steps<S, ATTN_CUDA_CAPPED> : NoSteps {
    bool far; /* a score of the last block was beyond the polynomial's range */

    __device__ __forceinline__ Steps(const Memory<S> &) : far(false)
    {
    }
    template <class Warp>
    __device__ __forceinline__ void begin(const attn_cuda_forward_params &, const Item &,
                                          const Warp &)
    {
    }
    __device__ __forceinline__ CappedExponents exponents(const attn_cuda_forward_params &a,
                                                         int) const
    {
        return CappedExponents(a.steps_sm90);
    }
    __device__ __forceinline__ bool look(const CappedExponents &) const
    {
        return far;
    }
    /* Masks are -inf, so a product that is so becomes finite before. */
    template <int N>
    __device__ __forceinline__ void prepare(CappedExponents &e, int, float (&s)[N]) const
    {
        uint32_t widest = 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            widest = max(widest, __float_as_uint(s[i] * s[i]));
        }
        e.far = __any_sync(~0u, widest > __float_as_uint(e.x.cap_most));
        if (e.far) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                s[i] = s[i] == -INFINITY ? -FLT_MAX : s[i];
            }
        }
    }
    __device__ __forceinline__ void learn(const CappedExponents &e)
    {
        far = e.far;
    }
};

/* ---- ALiBi ----------------------------------------------------------------------------------- */

/* Below the first 2^x is 0 (ptx::exp2). A block whose exponents lie below the second without their
 * products is likely to have none that is not. */
constexpr float ZERO_EXPONENT = -127, FAR_EXPONENT = -136;

struct SlopedExponents {
    float c, slope[2], start[2]; /* exponents of 2 */
    bool looked;                 /* the block is looked at */
    bool right;                  /* rows see keys right of their own positions */
    bool far = false;            /* probabilities of the warp's rows are likely 0 */

    /* The column of accumulator i, from the thread's first column on. */
    static __device__ __forceinline__ constexpr float column(int i)
    {
        return (float)(i / 4 * 8 + i % 2);
    }
    __device__ __forceinline__ float from(const RowState &state, int r) const
    {
        return start[r] - state.base;
    }
    template <bool QUICK>
    __device__ __forceinline__ float exponent(float s, int i, float from) const
    {
        return fmaf(s, c, fmaf(slope[i / 2 % 2], column(i), from));
    }
    /* The largest summand of the exponents of the thread's N products. */
    template <int N> __device__ __forceinline__ float nearest(const RowState (&state)[2]) const
    {
        const float first = from(state[0], 0), second = from(state[1], 1);
        return ptx::larger(ptx::larger(first, fmaf(slope[0], column(N - 1), first)),
                           ptx::larger(second, fmaf(slope[1], column(N - 1), second)));
    }
    template <int N> __device__ __forceinline__ void foresee(const RowState (&state)[2])
    {
        far = __all_sync(~0u, nearest<N>(state) < FAR_EXPONENT);
    }
    /* True if a bound of its exponents shows that the probabilities of a block that is far are 0:
     * sums stay, and exponentials need not be computed. NaN is above each bound. */
    template <int N>
    __device__ __forceinline__ bool vanishes(const float (&s)[N], const RowState (&state)[2]) const
    {
        float top[4] = {s[0], s[1], s[2], s[3]};
#pragma unroll
        for (int i = 4; i < N; i++) {
            top[i % 4] = ptx::larger(top[i % 4], s[i]);
        }
        const float most = ptx::larger(ptx::larger(top[0], top[1]), ptx::larger(top[2], top[3]));
        return __all_sync(~0u, fmaf(most, c, nearest<N>(state)) < ZERO_EXPONENT);
    }
    __device__ __forceinline__ bool good() const
    {
        return true;
    }
    __device__ __forceinline__ bool beyond() const
    {
        return false;
    }
    template <int N> __device__ __forceinline__ float top(const float (&s)[N], int r) const
    {
        float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
        for (int i = 2 * r; i < N; i += 4) {
            top[0] = fmaxf(top[0], exponent<false>(s[i], i, start[r]));
            top[1] = fmaxf(top[1], exponent<false>(s[i + 1], i + 1, start[r]));
        }
        return fmaxf(top[0], top[1]);
    }
    __device__ __forceinline__ float base(float m) const
    {
        return m;
    }
    __device__ __forceinline__ float score(float m, float) const
    {
        return m * LN2;
    }
};

template <class S> struct Steps<S, ATTN_CUDA_SLOPED> : NoSteps {
    float slope[2]; /* slopes of the thread's rows, in exponents of 2 */
    int position;   /* i + off in C3 of the first row, at most FAR from 0 */
    float beyond;   /* what is left of it then */
    int apart;      /* from there to the second row's */
    int reach;      /* keys to the right of it where each block's scores are so much higher than
                       those of the block before that the base moves */
    static constexpr int FAR = 1 << 30; /* no key lies so far */

    __device__ __forceinline__ Steps(const Memory<S> &)
    {
    }
    template <class Warp>
    __device__ __forceinline__ void begin(const attn_cuda_forward_params &a, const Item &item,
                                          const Warp &warp)
    {
        const attn_tensor &t = a.problem.alibi;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = ptx::opaque(threadIdx.x % 32) / 4 + 8 * r;
            const char *at = attn_at_broadcast(&t, item.sequence.index, warp.head(item, i), 0, 0);
            slope[r] = load_real<float>(at, t.dtype) * LOG2_E;
        }
        const int row = ptx::opaque(threadIdx.x % 32) / 4;
        const int64_t at = warp.row(item, row) + item.sequence.diagonal;
        position = (int)attn_clamp(at, -FAR, FAR), beyond = (float)(at - position);
        apart = warp.row(item, row + 8) - warp.row(item, row);
        reach = slope[0] * S::BN > SLACK && attn_mask_differs(&a.problem) ? FAR : 0; /* Walk */
    }
    __device__ __forceinline__ SlopedExponents exponents(const attn_cuda_forward_params &a,
                                                         int key) const
    {
        SlopedExponents e;
        e.c = a.steps_sm90.slope_factor, e.right = a.problem.window_right != 0;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            e.slope[r] = ahead(key, r) < 0 ? -slope[r] : slope[r];
            e.start[r] = distance(key, r) * -e.slope[r];
        }
        e.looked = __any_sync(~0u, crosses(key, 0, reach) || crosses(key, 1, reach));
        return e;
    }
    /* The distance from the block's first key to the row's own position, counted from the thread's
     * first column. */
    __device__ __forceinline__ int ahead(int key, int r) const
    {
        return position + r * apart - key;
    }
    __device__ __forceinline__ float distance(int key, int r) const
    {
        return (float)(ahead(key, r) - 2 * (int)(ptx::opaque(threadIdx.x) % 4)) + beyond;
    }
    /* True if keys on both sides of the row's own position are in the block, or it begins up to
     * `more` keys to the right of it. */
    __device__ __forceinline__ bool crosses(int key, int r, int more) const
    {
        return (uint32_t)(ahead(key, r) + more) < (uint32_t)(S::BN - 1 + more);
    }
    __device__ __forceinline__ bool look(const SlopedExponents &e) const
    {
        return e.looked;
    }
    template <int N>
    __device__ __forceinline__ void prepare(const SlopedExponents &e, int key, float (&s)[N]) const
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (e.right && crosses(key, r, 0)) {
                const float twice = 2 * slope[r] / e.c, first = distance(key, r);
#pragma unroll
                for (int i = 2 * r; i < N; i += 4) {
                    s[i] = fmaf(twice, fminf(first - e.column(i), 0), s[i]);
                    s[i + 1] = fmaf(twice, fminf(first - e.column(i + 1), 0), s[i + 1]);
                }
            }
        }
    }
    __device__ __forceinline__ void learn(const SlopedExponents &)
    {
    }
};
