/*
 * few_values.cuh: from a warp's scores of 16 keys to O: bases, P times the scales of V, O^T += V^T
 * P^T (few_tile.cuh says which numbers a lane has).
 *
 * Codes of e4m3 and e5m2 take half as many instructions as f16 than as bf16, NaN and infinities
 * among them too. P times a scale needs more range than f16 has, so O is in units of a power of
 * two, FewRows::v_times, that brings scales near 1, and follows them. It depends on keys that all
 * rows see; others, and those whose scales are too far apart, are bf16 (C4, C7).
 */
#pragma once
#include "cuda/kernel/forward/few_rows.cuh"
#include "cuda/kernel/mma/mma.cuh"

/* Words of a lane's codes from a tile. */
__device__ __forceinline__ void load_words(uint32_t (&w)[1], const unsigned char *from)
{
    w[0] = *(const uint32_t *)from;
}
__device__ __forceinline__ void load_words(uint32_t (&w)[2], const unsigned char *from)
{
    const uint2 x = *(const uint2 *)from;
    w[0] = x.x, w[1] = x.y;
}
__device__ __forceinline__ void load_words(uint32_t (&w)[4], const unsigned char *from)
{
    const uint4 x = *(const uint4 *)from;
    w[0] = x.x, w[1] = x.y, w[2] = x.z, w[3] = x.w;
}

/* Scales of V of a lane's two keys, in units of O. */
struct FewScales {
    float of[2];

    /* True if parts of f16 hold P times them: at most 2^SLACK times 128, with all digits down to
     * 2^-13 of P = 1. */
    __device__ __forceinline__ bool fit() const
    {
        return fits(of[0]) & fits(of[1]);
    }
    static __device__ __forceinline__ bool fits(float scale) /* 1 / 2 .. 128, of any sign */
    {
        constexpr uint32_t LEAST = 126u << 24, BELOW = 134u << 24;
        return (__float_as_uint(scale) << 1) - LEAST < BELOW - LEAST;
    }
    __device__ __forceinline__ FewScales times(float x) const
    {
        return {of[0] * x, of[1] * x};
    }
};

template <class S> struct FewValues {
    const attn_cuda_codes_params &c;
    FewRows<S> &rows;
    const typename S::Codes codes;
    const int place; /* of the lane's first codes in tiles */

    __device__ __forceinline__ FewValues(const attn_cuda_codes_params &c_, FewRows<S> &rows_,
                                         const typename S::Codes &codes_)
        : c(c_), rows(rows_), codes(codes_),
          place(S::place(2 * (threadIdx.x % 4), threadIdx.x % 32 / 4 * 4 * S::Codes::BITS / 8))
    {
    }

    __device__ __forceinline__ float base_of(float score) const
    {
        return __fmul_rn(score, c.forward.few.scale_log2) - RAISED<S::DTYPE>;
    }
    /* True if a score of row r of the lane's is too far above its base. A row's first scores leave
     * no slack. */
    __device__ __forceinline__ bool above(int t, int r, float most) const
    {
        const float base = rows.base[t][r], slack = base == NO_BASE ? 0 : SLACK;
        return base_of(most) - base > slack;
    }
    __device__ __forceinline__ void move_bases() const
    {
#pragma unroll
        for (int t = 0; t < S::TILES; t++) {
            float alpha[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float &base = rows.base[t][r];
                const float most = rows.over_keys(rows.m[t][r], true);
                alpha[r] = 1;
                if (above(t, r, most)) {
                    const float moved = base_of(most);
                    alpha[r] = ptx::exp2(base - moved);
                    base = moved;
                }
                rows.l[t][r] *= alpha[r];
                rows.shift[t][r] *= S::SHIFTS ? alpha[r] : 1;
            }
#pragma unroll
            for (int i = 0; i < 8 * S::UNITS; i++) {
                rows.o[t][i / 8][i / 4 % 2][i % 4] *= alpha[i % 2];
            }
        }
    }
    __device__ __forceinline__ FewScales load_scales(const float *factors) const
    {
        if (S::Codes::PLAIN) {
            return {1, 1};
        }
        const float *at = factors + V_SCALE * S::EACH + few_lane() / 4;
        return FewScales{at[0], at[8]}.times(S::Codes::HALVES ? rows.v_times : 1);
    }
    /* Moves the unit of O so that the scales of all keys fit, the largest as 32 .. 64. Returns
     * false, and moves nothing, if they are too far apart for that. */
    __device__ __forceinline__ bool follow(FewScales &scales) const
    {
        if (__all_sync(~0u, scales.fit())) {
            return true;
        }
        const auto exponent = [](float x) { return (int)(__float_as_uint(x) >> 23); };
        const float most = rows.over_keys(fmaxf(fabsf(scales.of[0]), fabsf(scales.of[1])), true);
        const int before = exponent(rows.v_times),
                  after = min(max(before + 127 + 5 - exponent(most), 127 - 60), 127 + 60);
        const float ratio = __uint_as_float((uint32_t)(127 + after - before) << 23);
        const FewScales moved = scales.times(ratio);
        if (!__all_sync(~0u, moved.fit())) {
            return false;
        }
        scales = moved;
        rows.scale_sums(ratio);
        return true;
    }
    /* Moves bases where scores ask for it. HALVES: and the unit of O, where rows are alike in the
     * keys that they see. Returns true if V need not be bf16 then. */
    template <bool HALVES>
    __device__ __forceinline__ bool move(const float (&s)[S::TILES][4], FewScales &scales,
                                         bool alike) const
    {
        bool moves = HALVES & !(alike & scales.fit());
#pragma unroll
        for (int t = 0; t < S::TILES; t++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                rows.m[t][r] = fmaxf(rows.m[t][r], fmaxf(s[t][r], s[t][2 + r]));
                moves |= above(t, r, rows.m[t][r]);
            }
        }
        bool fit = true;
        if (__builtin_expect(__any_sync(~0u, moves), false)) {
            move_bases();
            fit = !HALVES || (alike && follow(scales));
        }
        return fit;
    }

    /* Scores -> P^T times the scales of V as the right operand of P V, in parts. HALVES: in f16,
     * where rows see all keys. */
    template <bool HALVES>
    __device__ __forceinline__ void softmax(const float *factors, const FewScales &scales,
                                            const float (&s)[S::TILES][4],
                                            uint32_t (&p)[S::TILES][S::PARTS][2]) const
    {
        constexpr bool PLAIN = S::Codes::PLAIN, BF16 = S::BF16 && !HALVES;
        const int at = few_lane() / 4;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float scale = scales.of[i],
                        shift = S::SHIFTS ? factors[V_SHIFT * S::EACH + at + 8 * i] : 0;
#pragma unroll
            for (int t = 0; t < S::TILES; t++) {
                float x[2];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const float score = s[t][2 * i + r];
                    const float e =
                        ptx::exp2(fmaf(score, c.forward.few.scale_log2, -rows.base[t][r]));
                    const bool seen = HALVES || score != -INFINITY; /* factors may not be finite */
                    rows.l[t][r] += e;
                    x[r] = PLAIN ? e : seen ? e * scale : 0;
                    rows.shift[t][r] += S::SHIFTS && seen ? e * shift : 0;
                }
                const uint32_t first = ptx::pack_half<BF16>(x[0], x[1]);
                p[t][0][i] = mma::transposed(first);
                if constexpr (S::PARTS > 1) {
                    const float2 taken = ptx::unpack_half<BF16>(first);
                    p[t][1][i] =
                        mma::transposed(ptx::pack_half<BF16>(x[0] - taken.x, x[1] - taken.y));
                }
            }
        }
    }

    /* O += P V. Returns what `unsound` says of the codes; in f16 they come as NaN or infinite. */
    template <bool HALVES>
    __device__ __forceinline__ uint32_t accumulate(const unsigned char *v,
                                                   const uint32_t (&p)[S::TILES][S::PARTS][2]) const
    {
        constexpr int WORDS = S::Codes::VALUE_WORDS;
        constexpr bool BF16 = S::BF16 && !HALVES;
        const int first = S::Codes::PLAIN ? place : ptx::opaque(place); /* registers are few */
        uint32_t unsound = 0;
#pragma unroll
        for (int u = 0; u < S::UNITS; u++) {
            uint32_t values[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) { /* keys 2 (lane % 4) + {0, 1} + 8 i */
                uint32_t w[2][WORDS];
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const unsigned char *from =
                        v + S::beside(first, S::place(8 * i + j, 32 * u * S::Codes::BITS / 8));
                    if constexpr (S::Codes::BITS == 4) {
                        w[j][0] = *(const uint16_t *)from;
                    } else {
                        load_words(w[j], from);
                    }
                    unsound |= HALVES ? 0 : S::Codes::unsound(w[j][0]);
                }
                if constexpr (HALVES) {
                    codes.column_halves(values[i], w[0], w[1]);
                } else {
                    codes.columns(values[i], w[0], w[1]);
                }
            }
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t left[4] = {values[0][2 * j], values[0][2 * j + 1], values[1][2 * j],
                                          values[1][2 * j + 1]};
#pragma unroll
                for (int t = 0; t < S::TILES; t++) {
                    if constexpr (S::PARTS > 1) {
                        mma::product<BF16>(rows.o[t][u][j], left, p[t][1]);
                    }
                    mma::product<BF16>(rows.o[t][u][j], left, p[t][0]);
                }
            }
        }
        return unsound;
    }
    /* Both. */
    template <bool HALVES>
    __device__ __forceinline__ uint32_t weigh(const unsigned char *stage, const FewScales &scales,
                                              const float (&s)[S::TILES][4]) const
    {
        uint32_t p[S::TILES][S::PARTS][2];
        softmax<HALVES>((const float *)(stage + S::FACTORS_AT), scales, s, p);
        return accumulate<HALVES>(stage + S::TILE, p);
    }
};
