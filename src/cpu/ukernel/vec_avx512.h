/*
 * vec_avx512.h: the vector operations of body.h for AVX-512 F/BW/DQ/VL, in f32 or f64 (REAL_BITS). No include guard,
 * see vec_avx2.h.
 */
#include <immintrin.h>

#define ivec __m512i
#define IVL 8
#define i_load(p) _mm512_loadu_si512(p)
#define i_store(p, a) _mm512_storeu_si512(p, a)
#define i_set1(x) _mm512_set1_epi64(x)
#define i_xor3(a, b, c) _mm512_ternarylogic_epi64(a, b, c, 0x96)
#define i_mul _mm512_mul_epu32
#define i_high(a) _mm512_srli_epi64(a, 32)

#if REAL_BITS == 32

#define vec __m512
#define VL 16
#define MR 8
#define NV 2
#define AHEAD 0
#define v_load _mm512_loadu_ps
#define v_store _mm512_storeu_ps
#define v_set1 _mm512_set1_ps
#define v_add _mm512_add_ps
#define v_sub _mm512_sub_ps
#define v_mul _mm512_mul_ps
#define v_div _mm512_div_ps
#define v_fma _mm512_fmadd_ps
#define v_fms _mm512_fmsub_ps
#define v_max(m, s) _mm512_max_ps(s, m)
#define v_abs _mm512_abs_ps
#define v_select_lt(a, b, x, y) _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x)
#define v_zero_lt(a, b, y) _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ), y)
#define v_ldexp(a, t, n) _mm512_scalef_ps(a, n)
#define v_zip_low(a, b) \
    _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), b)
#define v_zip_high(a, b) \
    _mm512_permutex2var_ps(a, _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31), b)
#define v_load_f16(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#define v_load_bf16(p) \
    _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p))), 16))
#define v_store_f16(p, a) _mm256_storeu_si256((__m256i *)(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT))
/* a rounded to bf16, in upper halves; what is left in the lower ones does not count. */
ATTN_INLINE __m512i round_bf16(vec a)
{
    __m512i u = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_mask_or_epi32(up, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
}
ATTN_INLINE void v_store_bf16(uint16_t *p, vec a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_bf16(a), 16)));
}

/* Dwords of 16-bit elements, a below b. */
#define v_pair_bf16(a, b) \
    _mm512_castsi512_ps(_mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(round_bf16(a), 16), round_bf16(b)))
#define v_pair_f16(a, b)                                                                                \
    _mm512_castsi512_ps(_mm512_or_si512(                                                                \
        _mm512_cvtepu16_epi32(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)),                           \
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT)), 16)))

/* a / b as v_div rounds it, without its 16 cycles; inverse = 1 / b. a * inverse is within 2 ulp, and corrected by its
 * remainder within 2^-22 ulp: no quotient of floats is so near to the middle between two others that rounding could then
 * err (docs/cpu.md). For |a| within 2^-64 to 2^64 and b within 2^-32 to 2^32. */
#define v_quotient(a, b, inverse) v_corrected(v_mul(a, inverse), a, b, inverse)
#define v_corrected(q, a, b, inverse) _mm512_fnmadd_ps(v_fms(q, b, a), inverse, q)

/* That holds for b and n vectors from a on, `step` floats from one to the next. */
ATTN_INLINE bool v_can_quotient(const float *a, int64_t step, int64_t n, vec b)
{
    const __m512i least = _mm512_set1_epi32((127 - 64) << 24), all = _mm512_set1_epi32(128 << 24);
    __m512i most = _mm512_setzero_si512();
    for (int64_t i = 0; i < n; i++, a += step) { /* twice the bits: without the sign */
        const __m512i bits = _mm512_castps_si512(v_load(a));
        most = _mm512_max_epu32(most, _mm512_sub_epi32(_mm512_add_epi32(bits, bits), least));
    }
    const __mmask16 far = _mm512_cmp_ps_mask(b, v_set1(0x1p-32f), _CMP_NGT_UQ) |
                          _mm512_cmp_ps_mask(b, v_set1(0x1p32f), _CMP_NLT_UQ);
    return (far | _mm512_cmpge_epu32_mask(most, all)) == 0;
}

#else

#define vec __m512d
#define VL 8
#define MR 8
#define NV 2
#define AHEAD 0
#define v_load _mm512_loadu_pd
#define v_store _mm512_storeu_pd
#define v_set1 _mm512_set1_pd
#define v_add _mm512_add_pd
#define v_sub _mm512_sub_pd
#define v_mul _mm512_mul_pd
#define v_div _mm512_div_pd
#define v_fma _mm512_fmadd_pd
#define v_fms _mm512_fmsub_pd
#define v_max(m, s) _mm512_max_pd(s, m)
#define v_abs _mm512_abs_pd
#define v_select_lt(a, b, x, y) _mm512_mask_blend_pd(_mm512_cmp_pd_mask(a, b, _CMP_LT_OQ), y, x)
#define v_zero_lt(a, b, y) _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(a, b, _CMP_NLT_UQ), y)
#define v_ldexp(a, t, n) _mm512_scalef_pd(a, n)
#define v_zip_low(a, b) _mm512_permutex2var_pd(a, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), b)
#define v_zip_high(a, b) _mm512_permutex2var_pd(a, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), b)

#endif
