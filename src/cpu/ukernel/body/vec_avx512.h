/*
 * vec_avx512.h: the vector operations of body.h for AVX-512 F/BW/DQ/VL, in f32 or f64 (REAL_BITS).
 * No include guard, see vec_avx2.h.
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
#define HELD 4
#define COLUMNS 4
#define COLUMN_SUMS 24
#define RUN_LANES 4
#define FEW_DISTANCE 8192
#define v_load _mm512_loadu_ps
#define v_store _mm512_storeu_ps
#define v_set1 _mm512_set1_ps
#define v_lanes_at(x, at) _mm512_permutexvar_ps(at, x)
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
#define v_zip_low _mm512_unpacklo_ps
#define v_zip_high _mm512_unpackhi_ps
#define v_even_quarters(a, b) _mm512_shuffle_f32x4(a, b, 0x88)
#define v_odd_quarters(a, b) _mm512_shuffle_f32x4(a, b, 0xdd)
#define v_load4(p) _mm512_zextps128_ps512(_mm_loadu_ps(p))
#define v_store4(p, a) _mm_storeu_ps(p, _mm512_castps512_ps128(a))
#define v_store_quads(to, step, a)                               \
    (_mm_storeu_ps((to)[0], _mm512_castps512_ps128(a)),          \
     _mm_storeu_ps((to)[step], _mm512_extractf32x4_ps(a, 1)),    \
     _mm_storeu_ps((to)[2 * (step)], _mm512_extractf32x4_ps(a, 2)), \
     _mm_storeu_ps((to)[3 * (step)], _mm512_extractf32x4_ps(a, 3)))
#define v_load_quads(from, step)                                                            \
    _mm512_insertf32x4(                                                                     \
        _mm512_insertf32x4(_mm512_insertf32x4(v_load4((from)[0]), _mm_loadu_ps((from)[step]), 1), \
                           _mm_loadu_ps((from)[2 * (step)]), 2),                             \
        _mm_loadu_ps((from)[3 * (step)]), 3)
/* The first four lanes four times; four lanes of sums, to which those of x are added in turn. */
#define v_repeat_quad(x) _mm512_shuffle_f32x4(x, x, 0)
ATTN_INLINE vec v_add_quads(vec to, vec x)
{
    __m128 sum = _mm_add_ps(_mm512_castps512_ps128(to), _mm512_castps512_ps128(x));
    sum = _mm_add_ps(sum, _mm512_extractf32x4_ps(x, 1));
    sum = _mm_add_ps(sum, _mm512_extractf32x4_ps(x, 2));
    return _mm512_zextps128_ps512(_mm_add_ps(sum, _mm512_extractf32x4_ps(x, 3)));
}
/* 8 numbers at a, then 8 at b. */
#define v_join_f32(a, b) \
    _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(a)), _mm256_loadu_ps(b), 1)
#define v_join_halves(a, b)                                                           \
    _mm256_inserti128_si256(                                                          \
        _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(a))), \
        _mm_loadu_si128((const __m128i *)(const void *)(b)), 1)
#define v_join_f16(a, b) _mm512_cvtph_ps(v_join_halves(a, b))
#define v_join_bf16(a, b) \
    _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v_join_halves(a, b)), 16))
#define v_quad(p) _mm_loadu_ps((const float *)(const void *)(p))
/* 16 bytes from `byte` on of rows at[0], at[4], at[8] and at[12]. */
#define v_join_quads join_quads
ATTN_INLINE vec join_quads(const char *const *at, int64_t byte)
{
    const __m256 two =
        _mm256_insertf128_ps(_mm256_castps128_ps256(v_quad(at[0] + byte)), v_quad(at[4] + byte), 1);
    const vec three = _mm512_insertf32x4(_mm512_castps256_ps512(two), v_quad(at[8] + byte), 2);
    return _mm512_insertf32x4(three, v_quad(at[12] + byte), 3);
}
#define RUN_BY_QUADS(dtype) ((dtype) != ATTN_F32)
#define RUN_OWN false /* body_few.h is faster where f32 keys do not lie in L2 */
#define v_load1_f16(p) _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(*(p))))
#define v_load_f16(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#define v_load_bf16(p)   \
    _mm512_castsi512_ps( \
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p))), 16))
/* x[0] and x[1]: the first and the second number of each pair. Numbers of f16 are converted where
 * they are loaded, which takes no shuffle. */
ATTN_INLINE void v_split_bf16(vec *x, vec a)
{
    x[0] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 16));
    x[1] = _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32((int)0xffff0000)));
}
ATTN_INLINE void v_split_f16(vec *x, vec a)
{
    static const uint16_t apart[32] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                       1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
    uint16_t word[32];
    i_store(word, _mm512_permutexvar_epi16(i_load(apart), _mm512_castps_si512(a)));
    __asm__("" : "+m"(word)); /* so that the halves are loaded: as registers they take shuffles */
    x[0] = v_load_f16(word), x[1] = v_load_f16(word + 16);
}
#define v_split(x, a, dtype) ((dtype) == ATTN_F16 ? v_split_f16(x, a) : v_split_bf16(x, a))
#define v_store_f16(p, a) \
    _mm256_storeu_si256((__m256i *)(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT))
/* 16 codes as numbers. */
#define v_load_i8(p) \
    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p))))
/* Column j of 16 keys, of which each dword holds 4 or 8 columns, the first lowest. */
#define v_column_i8(x, j)                                                                       \
    _mm512_cvtepi32_ps(_mm512_srai_epi32(                                                       \
        _mm512_sllv_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(24 - 8 * (j))), 24))
#define v_column_i4(x, j)                                                           \
    _mm512_permutexvar_ps(                                                          \
        _mm512_srlv_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(4 * (j))),      \
        _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1))
/* The same of floats of 8 bits with `shift` - 1 bits of exponent, e4m3 and e5m2: as bf16, whose
 * exponent is `bias` higher, columns j and j + 2 at once. Small codes come from a table: moved into
 * an f32 they would be subnormal, which multiplications of some processors take a hundred cycles
 * for. Codes that are not finite are wrong. */
#define v_column_e4m3(x, j) column_f8(_mm512_castps_si512(x), j, 4, 0x7800, 120, small_e4m3)
#define v_column_e5m2(x, j) column_f8(_mm512_castps_si512(x), j, 3, 0x7c00, 112, small_e5m2)
static const uint16_t small_e4m3[8] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60},
                      small_e5m2[8] = {0, 0x3780, 0x3800, 0x3840};
ATTN_INLINE vec column_f8(__m512i x, const int j, const int shift, const int exponent,
                          const int bias, const uint16_t *small)
{
    const __m128i of = _mm_loadu_si128((const __m128i *)(const void *)small);
    const __m512i code = j % 2 ? x : _mm512_slli_epi16(x, 8); /* in the upper bytes of words */
    const __m512i low = j % 2 ? _mm512_srli_epi16(x, 8) : x;
    const __m512i sign = _mm512_set1_epi16((short)0x8000);
    const __mmask32 is_small = _mm512_testn_epi16_mask(code, _mm512_set1_epi16((short)exponent));
    __m512i word = _mm512_srlv_epi16(code, _mm512_set1_epi16((short)shift));
    word = _mm512_and_si512(word, _mm512_set1_epi16((short)(0x7f << (8 - shift))));
    word = _mm512_add_epi16(word, _mm512_set1_epi16((short)(bias << 7)));
    word = _mm512_mask_permutexvar_epi16(word, is_small, low, _mm512_broadcast_i32x4(of));
    word = _mm512_ternarylogic_epi32(word, code, sign, 0xf8); /* | x & y */
    return _mm512_castsi512_ps(j < 2 ? _mm512_slli_epi32(word, 16)
                                     : _mm512_and_si512(word, _mm512_set1_epi32((int)0xffff0000)));
}
#define v_any_beyond(x, last)                                                              \
    (_mm512_cmpgt_epi8_mask(                                                               \
         _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi8(0x7f)),                  \
         _mm512_set1_epi8(last)) != 0)
ATTN_INLINE vec v_load_i4(const char *p)
{
    const __m128i both = _mm_loadl_epi64((const __m128i *)(const void *)p);
    const __m128i upper = _mm_and_si128(both, _mm_set1_epi8((char)0xf0)),
                  lower = _mm_and_si128(_mm_slli_epi16(both, 4), _mm_set1_epi8((char)0xf0));
    return _mm512_cvtepi32_ps(
        _mm512_srai_epi32(_mm512_cvtepi8_epi32(_mm_unpacklo_epi8(lower, upper)), 4));
}
#define v_load_e5m2(p)              \
    _mm512_cvtph_ps(_mm256_slli_epi16( \
        _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(p))), 8))
ATTN_INLINE vec v_load_e4m3(const char *p)
{
    const __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    const __m256i half = _mm256_or_si256(
        _mm256_and_si256(_mm256_slli_epi16(x, 7), _mm256_set1_epi16(0x3f80)),
        _mm256_and_si256(x, _mm256_set1_epi16((short)0x8000)));
    const vec y = _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256));
    return _mm512_mask_mov_ps(
        y, _mm512_cmp_ps_mask(_mm512_abs_ps(y), _mm512_set1_ps(480), _CMP_EQ_OQ),
        _mm512_set1_ps(NAN));
}
/* 32 codes. */
ATTN_INLINE void v_load_two_e4m3(vec *x, const char *p)
{
    const __m256i codes = _mm256_loadu_si256((const __m256i *)(const void *)p);
    const __m512i code = _mm512_slli_epi16(_mm512_cvtepi8_epi16(codes), 8),
                  none = _mm512_set1_epi16(0x3f80), /* all bits of an f16 that stands for NaN */
                  size = _mm512_and_si512(_mm512_srli_epi16(code, 1), none),
                  half = _mm512_ternarylogic_epi32(size, code, _mm512_set1_epi16((short)0x8000),
                                                   0xf8); /* | x & y */
    if (_mm512_cmpge_epi16_mask(size, none) != 0) {
        x[0] = v_load_e4m3(p), x[1] = v_load_e4m3(p + 16);
        return;
    }
    x[0] = v_mul(_mm512_cvtph_ps(_mm512_castsi512_si256(half)), v_set1(256));
    x[1] = v_mul(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1)), v_set1(256));
}
/* Types whose pairs are loaded as two vectors, with less work than side by side: numbers 0, 2, 4 ..
 * in the first one. */
#define v_in_pairs(dtype) ((dtype) == ATTN_BF16 || (dtype) == ATTN_I4X2)
ATTN_INLINE void v_load_pairs(vec *x, const char *p, const int32_t dtype)
{
    if (dtype == ATTN_BF16) {
        v_split_bf16(x, v_load((const float *)(const void *)p));
        return;
    }
    const vec number = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    const __m512i two = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    x[0] = v_lanes_at(number, two); /* by four bits of each lane */
    x[1] = v_lanes_at(number, _mm512_srli_epi32(two, 4));
}
/* x[0] x[1] side by side become pairs, and back. */
ATTN_INLINE void v_to_pairs(vec *x)
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const vec first = _mm512_permutex2var_ps(x[0], even, x[1]);
    x[1] = _mm512_permutex2var_ps(x[0], _mm512_or_si512(even, _mm512_set1_epi32(1)), x[1]);
    x[0] = first;
}
ATTN_INLINE void v_from_pairs(vec *x)
{
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const vec first = _mm512_permutex2var_ps(x[0], low, x[1]);
    x[1] = _mm512_permutex2var_ps(x[0], _mm512_or_si512(low, _mm512_set1_epi32(8)), x[1]);
    x[0] = first;
}
/* a rounded to bf16, in upper halves, which is wrong for a NaN; the lower ones are left over. */
ATTN_INLINE __m512i round_bf16(vec a)
{
    __m512i u = _mm512_castps_si512(a),
            odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
}
ATTN_INLINE void v_store_bf16(uint16_t *p, vec a)
{
    __m512i u = _mm512_castps_si512(a);
    __m512i up = _mm512_mask_or_epi32(round_bf16(a), _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), u,
                                      _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16)));
}

/* Dwords of 16-bit elements, a below b; neither is a NaN. */
#define v_pair_bf16(a, b) \
    _mm512_castsi512_ps(  \
        _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(round_bf16(a), 16), round_bf16(b)))
#define v_pair_f16(a, b)                                                                        \
    _mm512_castsi512_ps(_mm512_or_si512(                                                        \
        _mm512_cvtepu16_epi32(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)),                   \
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT)), \
                          16)))

/* a / b as v_div rounds it, without its 16 cycles; inverse = 1 / b. a * inverse, corrected by its
 * remainder, is within 2^-22 ulp of the quotient before it is rounded, and of the quotients that
 * lie nearer than that to the middle between two floats each one was tried (docs/numerics.md). For
 * v_can_quotient. */
#define v_quotient(a, b, inverse) v_corrected(v_mul(a, inverse), a, b, inverse)
#define v_corrected(q, a, b, inverse) _mm512_fnmadd_ps(v_fms(q, b, a), inverse, q)

/* differ &= bits ^ bits << 1 */
ATTN_INLINE __m512i and_differ(__m512i differ, vec x)
{
    const __m512i bits = _mm512_castps_si512(x);
    return _mm512_ternarylogic_epi32(differ, bits, _mm512_add_epi32(bits, bits), 0x60);
}

/* b is within 2^-32 to 2^32 and |a| within 2^-63 to 2^65, where the two upper bits of its exponent
 * differ: for n vectors from a on, `step` floats from one to the next. Lanes from `lanes` on do not
 * count: they hold anything. */
ATTN_INLINE bool v_can_quotient(const float *a, int64_t step, int64_t n, vec b, int lanes)
{
    const unsigned used = lanes < VL ? (1u << lanes) - 1 : 0xffff;
    const __m512i upper = _mm512_set1_epi32(1 << 30);
    __m512i differ = upper;
    for (int64_t i = 0; i < n; i++, a += step) {
        differ = and_differ(differ, v_load(a));
    }
    const __mmask16 far = _mm512_cmp_ps_mask(b, v_set1(0x1p-32f), _CMP_NGT_UQ) |
                          _mm512_cmp_ps_mask(b, v_set1(0x1p32f), _CMP_NLT_UQ);
    return (far & used) == 0 && (_mm512_test_epi32_mask(differ, upper) & used) == used;
}

/* The same for n vectors in registers, without b. A zero will do as well. */
ATTN_INLINE bool v_can_quotients(const vec *a, const int n)
{
    const __m512i upper = _mm512_set1_epi32(1 << 30);
    __m512i differ = upper;
    ATTN_UNROLL for (int i = 0; i < n; i++) differ = and_differ(differ, a[i]);
    __mmask16 fits = _mm512_test_epi32_mask(differ, upper);
    if (fits != 0xffff) {
        fits = 0xffff;
        ATTN_UNROLL for (int i = 0; i < n; i++) fits &=
            _mm512_test_epi32_mask(and_differ(upper, a[i]), upper) |
            _mm512_cmp_ps_mask(a[i], v_set1(0), _CMP_EQ_OQ);
    }
    return fits == 0xffff;
}

#else

#define vec __m512d
#define VL 8
#define MR 8
#define NV 2
#define AHEAD 0
#define HELD 4
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
#define v_zip_low _mm512_unpacklo_pd
#define v_zip_high _mm512_unpackhi_pd
#define v_load4(p) _mm512_zextpd256_pd512(_mm256_loadu_pd(p))
#define v_store4(p, a) _mm256_storeu_pd(p, _mm512_castpd512_pd256(a))
#define v_even_quarters(a, b) _mm512_shuffle_f64x2(a, b, 0x88)
#define v_odd_quarters(a, b) _mm512_shuffle_f64x2(a, b, 0xdd)

#endif
