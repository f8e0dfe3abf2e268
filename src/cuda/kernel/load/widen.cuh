/*
 * widen.cuh: codes of 8 and 4 bits as numbers of 16 bits, which hold all of them: two at a time, by
 * arithmetic on the words in which they come. Codes that are no finite number (e4m3, e5m2) become
 * some finite bf16 number; `unsound` finds them. Elements of 16 bits stay as they are.
 *
 * Eight neighbouring codes become four pairs in an order of their own (pair_column), in which
 * operands of Q are put as well. Four columns of two keys become pairs of keys.
 */
#pragma once
#include "core/code_types.h"
#include "cuda/kernel/ptx/codes.cuh"
#include "cuda/kernel/ptx/ptx.cuh"
#include "cuda/shape.h"

template <int CODE> struct Codes {
    static constexpr bool PLAIN = ATTN_FEW_IS_PLAIN(CODE);
    static constexpr int BITS = ATTN_FEW_BITS(CODE);
    static constexpr int WORDS = BITS / 4;                 /* of eight codes */
    static constexpr int VALUE_WORDS = BITS == 16 ? 2 : 1; /* of four */
    static constexpr bool INTEGER = CODE == ATTN_I8 || CODE == ATTN_I4X2;
    /* Numbers are codes over this. A bf16 number of bits n < 256 is n 2^-133, subnormal or not, so
     * one multiply-add makes n 2^-6 less a bias of it. */
    static constexpr float UNIT = INTEGER ? 64 : 1;
    /* Codes become f16 in fewer steps, not finite where they are no number: of K beside rows of Q
     * that f16 holds, of V beside scales that are not far apart. */
    static constexpr bool HALVES = ptx::HAS_E4M3 && (CODE == ATTN_E4M3 || CODE == ATTN_E5M2);

    /* Masks that the compiler does not know: an instruction takes one constant. */
    struct Masks {
        uint32_t low, high;
    };
    static __device__ __forceinline__ Masks masks()
    {
        return BITS == 4 ? Masks{0x000f000f, 0x00f000f0} : Masks{0x00ff00ff, 0x00ff00ff};
    }
    Masks mask;

    /* The numbers of bytes 0 and 2; of the codes that are floats, of bytes 0 and 1. */
    __device__ __forceinline__ uint32_t even(uint32_t w) const
    {
        if constexpr (CODE == ATTN_I8) { /* with a bias of 128 */
            return ptx::fma_halves<true>((w & mask.low) ^ 0x00800080, 0x7f007f00, 0xc000c000);
        } else {
            return from_signed(ptx::permute(w, w, 0x9180));
        }
    }
    /* Those of the other two. */
    __device__ __forceinline__ uint32_t odd(uint32_t w) const
    {
        return CODE == ATTN_I8 ? even(w >> 8) : from_signed(ptx::permute(w, w, 0xb3a2));
    }
    /* The numbers of two codes of 8 bits with signs, which have been widened to 16 bits as whole
     * numbers are, so that no step is for the sign alone. Their bits in the places of bf16's are
     * 2^-120 (e4m3) or 2^-112 (e5m2) times the number. */
    static __device__ __forceinline__ uint32_t from_signed(uint32_t w)
    {
        return CODE == ATTN_E4M3 ? ptx::fma_halves<true>(w * 16 & 0x87f087f0, 0x7b807b80, 0)
                                 : ptx::fma_halves<true>(w * 32 & 0x8fe08fe0, 0x77807780, 0);
    }
    /* The numbers of groups of four bits, counted from the lowest, of both halves. */
    __device__ __forceinline__ void nibbles(uint32_t (&pairs)[4], uint32_t w) const
    {
#pragma unroll
        for (int i = 0; i < 4; i += 2, w >>= 8) { /* with a bias of 8 */
            pairs[i] = ptx::fma_halves<true>((w & mask.low) ^ 0x00080008, 0x7f007f00, 0xbe00be00);
            pairs[i + 1] =
                ptx::fma_halves<true>((w & mask.high) ^ 0x00800080, 0x7d007d00, 0xbe00be00);
        }
    }

    /* The column of half `half` of pair `pair` among eight, of codes. */
    static __device__ __forceinline__ constexpr int pair_column(int pair, int half)
    {
        return BITS == 4 ? pair + 4 * half
               : INTEGER ? pair / 2 * 4 + pair % 2 + 2 * half
                         : 2 * pair + half;
    }

    /* Four codes in their order as f16. */
    static __device__ __forceinline__ void halves(uint32_t w, uint32_t &low, uint32_t &high)
    {
        if constexpr (CODE == ATTN_E4M3) {
            ptx::e4m3_halves(w, low, high);
        } else {
            low = ptx::permute(w, 0, 0x1404), high = ptx::permute(w, 0, 0x3424);
        }
    }
    /* Eight codes of a key, in words, as f16. */
    static __device__ __forceinline__ void row_halves(uint32_t (&pairs)[4],
                                                      const uint32_t (&w)[WORDS])
    {
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            halves(w[i], pairs[2 * i], pairs[2 * i + 1]);
        }
    }
    /* The same as bf16. */
    __device__ __forceinline__ void row(uint32_t (&pairs)[4], const uint32_t (&w)[WORDS]) const
    {
        if constexpr (PLAIN) {
            pairs[0] = w[0], pairs[1] = w[1], pairs[2] = w[2], pairs[3] = w[3];
        } else if constexpr (BITS == 4) {
            nibbles(pairs, w[0]);
        } else {
            pairs[0] = even(w[0]), pairs[1] = odd(w[0]);
            pairs[2] = even(w[1]), pairs[3] = odd(w[1]);
        }
    }

    /* Four columns of two keys as f16: pairs of keys, by column. */
    static __device__ __forceinline__ void column_halves(uint32_t (&pairs)[4],
                                                         const uint32_t (&a)[VALUE_WORDS],
                                                         const uint32_t (&b)[VALUE_WORDS])
    {
        halves(ptx::permute(a[0], b[0], 0x5140), pairs[0], pairs[1]);
        halves(ptx::permute(a[0], b[0], 0x7362), pairs[2], pairs[3]);
    }
    /* The same as bf16, and elements of 16 bits as they are. */
    __device__ __forceinline__ void columns(uint32_t (&pairs)[4], const uint32_t (&a)[VALUE_WORDS],
                                            const uint32_t (&b)[VALUE_WORDS]) const
    {
        if constexpr (CODE == ATTN_E4M3 || CODE == ATTN_E5M2) {
            pairs[0] = from_signed(ptx::permute(a[0], b[0], 0xc480));
            pairs[1] = from_signed(ptx::permute(a[0], b[0], 0xd591));
            pairs[2] = from_signed(ptx::permute(a[0], b[0], 0xe6a2));
            pairs[3] = from_signed(ptx::permute(a[0], b[0], 0xf7b3));
            return;
        }
        const uint32_t first = ptx::permute(a[0], b[0], 0x5410);
        const uint32_t second = ptx::permute(a[0], b[0], 0x7632);
        if constexpr (PLAIN) {
            pairs[0] = first, pairs[1] = second;
            pairs[2] = ptx::permute(a[1], b[1], 0x5410);
            pairs[3] = ptx::permute(a[1], b[1], 0x7632);
        } else if constexpr (BITS == 4) {
            nibbles(pairs, first);
        } else {
            pairs[0] = even(first), pairs[1] = odd(first);
            pairs[2] = even(second), pairs[3] = odd(second);
        }
    }

    /* Bit 7 of each byte that is no finite number; other bits do not matter. */
    static __device__ __forceinline__ uint32_t unsound(uint32_t w)
    {
        return CODE == ATTN_E4M3   ? (w & 0x7f7f7f7f) + 0x01010101
               : CODE == ATTN_E5M2 ? (w & 0x7c7c7c7c) + 0x04040404
                                   : 0;
    }
};
