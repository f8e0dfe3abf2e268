/*
 * vec_avx2.h: the vector operations of body.h for AVX2 + FMA + F16C, in f32 or f64 (REAL_BITS). No
 * include guard: body.h includes it once per type and undefines the names at its end. The list with
 * what each must do is in body.h.
 */
#include <immintrin.h>

/* Counters of loops are a seventh of the operations of a group's products. They cost nothing where
 * a core has one thread, and a tenth where another one takes half of its operations. */
#define EACH_STEP ATTN_UNROLL_4

/* The lines of a chunk of f32. Rows of long head dims come from the second-level cache late where a
 * core has half of its window. */
#define FETCHED 2

#define ivec __m256i
#define IVL 4
#define i_load(p) _mm256_loadu_si256((const __m256i *)(p))
#define i_store(p, a) _mm256_storeu_si256((__m256i *)(p), a)
#define i_set1(x) _mm256_set1_epi64x(x)
#define i_xor3(a, b, c) _mm256_xor_si256(_mm256_xor_si256(a, b), c)
#define i_mul _mm256_mul_epu32
#define i_high(a) _mm256_srli_epi64(a, 32)

#if REAL_BITS == 32

#define vec __m256
#define VL 8
#define MR 4
#define NV 3
#define AHEAD 3
#define COLUMNS 3
#define COLUMN_SUMS 12
#define RUN_LANES 4
#define RUN_DISTANCE 8192
#define FEW_DISTANCE 8192
#define v_load _mm256_loadu_ps
#define v_store _mm256_storeu_ps
#define v_set1 _mm256_set1_ps
#define v_lanes_at _mm256_permutevar8x32_ps
#define v_add _mm256_add_ps
#define v_sub _mm256_sub_ps
#define v_mul _mm256_mul_ps
#define v_div _mm256_div_ps
#define v_fma _mm256_fmadd_ps
#define v_fms _mm256_fmsub_ps
#define v_max(m, s) _mm256_max_ps(s, m)
#define v_abs(a) _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a)
#define v_select_lt(a, b, x, y) _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ))
#define v_zero_lt(a, b, y) _mm256_andnot_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ), y)
#define v_ldexp(a, t, n)                                                                       \
    _mm256_mul_ps(                                                                             \
        a, _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(t), 23), \
                                                _mm256_set1_epi32(127 << 23))))
#define v_zip_low _mm256_unpacklo_ps
#define v_zip_high _mm256_unpackhi_ps
#define v_low_halves(a, b) _mm256_permute2f128_ps(a, b, 0x20)
#define v_high_halves(a, b) _mm256_permute2f128_ps(a, b, 0x31)
#define v_load4(p) _mm256_zextps128_ps256(_mm_loadu_ps(p))
#define v_store4(p, a) _mm_storeu_ps(p, _mm256_castps256_ps128(a))
#define v_store_quads(to, step, a)                      \
    (_mm_storeu_ps((to)[0], _mm256_castps256_ps128(a)), \
     _mm_storeu_ps((to)[step], _mm256_extractf128_ps(a, 1)))
#define v_load_quads(from, step) \
    _mm256_insertf128_ps(v_load4((from)[0]), _mm_loadu_ps((from)[step]), 1)
#define v_repeat_quad(x) _mm256_permute2f128_ps(x, x, 0)
#define v_add_quads(to, a)                                                                \
    _mm256_zextps128_ps256(                                                               \
        _mm_add_ps(_mm_add_ps(_mm256_castps256_ps128(to), _mm256_castps256_ps128(a)),      \
                   _mm256_extractf128_ps(a, 1)))
/* 16 bytes from `byte` on of rows at[0] and at[4]. */
#define v_join_quads(at, byte)                                                                 \
    _mm256_insertf128_ps(                                                                      \
        _mm256_castps128_ps256(_mm_loadu_ps((const float *)(const void *)((at)[0] + (byte)))), \
        _mm_loadu_ps((const float *)(const void *)((at)[4] + (byte))), 1)
#define ONE_BY_QUADS(dtype) ((dtype) != ATTN_F16)
/* x[0] and x[1]: the first and the second number of each pair. */
ATTN_INLINE void v_split_bf16(vec *x, vec a)
{
    x[0] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 16));
    x[1] = _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(-65536)));
}
#define v_split(x, a, dtype) v_split_bf16(x, a)
/* x[i] = element i from `byte` on of 8 rows, i < 16. */
#define v_columns_f16 columns_f16
ATTN_INLINE void columns_f16(vec *x, const char *const *row, int64_t byte)
{
    __m256i a[8], b[8];
    ATTN_UNROLL for (int i = 0; i < 8; i++) a[i] =
        _mm256_loadu_si256((const __m256i *)(const void *)(row[i] + byte));
    /* three times words i of rows r and r + 4 become neighbours */
    ATTN_UNROLL for (int step = 0; step < 3; step++) {
        ATTN_UNROLL for (int i = 0; i < 4; i++) {
            b[2 * i] = _mm256_unpacklo_epi16(a[i], a[i + 4]);
            b[2 * i + 1] = _mm256_unpackhi_epi16(a[i], a[i + 4]);
        }
        ATTN_UNROLL for (int i = 0; i < 8; i++) a[i] = b[i];
    }
    ATTN_UNROLL for (int i = 0; i < 8; i++) {
        x[i] = _mm256_cvtph_ps(_mm256_castsi256_si128(a[i]));
        x[i + 8] = _mm256_cvtph_ps(_mm256_extracti128_si256(a[i], 1));
    }
}
#define v_load1_f16(p) _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(*(p))))
#define v_load_f16(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define v_load_bf16(p)   \
    _mm256_castsi256_ps( \
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p))), 16))
#define v_store_f16(p, a) \
    _mm_storeu_si128((__m128i *)(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT))
/* 8 codes as numbers. */
#define v_load_i8(p)                                                                          \
    _mm256_cvtepi32_ps(                                                                       \
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p))))
/* Column j of 8 keys, of which each dword holds 4 or 8 columns, the first lowest. */
#define v_column(x, bits, j)                                                            \
    _mm256_cvtepi32_ps(_mm256_srai_epi32(                                               \
        _mm256_sllv_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(32 - (bits) * ((j) + 1))), \
        32 - (bits)))
#define v_column_i8(x, j) v_column(x, 8, j)
#define v_column_i4(x, j) v_column(x, 4, j)
/* Of floats of 8 bits, columns j and j + 2 at once, as f16: a code of e5m2 is its upper byte, one
 * of e4m3 gives 2^-8 of itself. Moved into an f32 small codes would be subnormal, which
 * multiplications of some processors take a hundred cycles for. Codes that are not finite are
 * wrong. */
#define v_column_e5m2(x, j) column_f16(upper_codes(x, j), j)
#define v_column_e4m3(x, j) \
    _mm256_mul_ps(column_f16(e4m3_halves(upper_codes(x, j)), j), _mm256_set1_ps(256))
#define upper_codes(x, j)                                                               \
    ((j) % 2 ? _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi16((short)0xff00)) \
             : _mm256_slli_epi16(_mm256_castps_si256(x), 8))
ATTN_INLINE __m256i e4m3_halves(__m256i code)
{
    return _mm256_or_si256(
        _mm256_and_si256(_mm256_srli_epi16(code, 1), _mm256_set1_epi16(0x3f80)),
        _mm256_and_si256(code, _mm256_set1_epi16((short)0x8000)));
}
ATTN_INLINE vec column_f16(__m256i words, const int j)
{
    const __m256i apart = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m256i both = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(words, apart), 0xd8);
    return _mm256_cvtph_ps(j < 2 ? _mm256_castsi256_si128(both)
                                 : _mm256_extracti128_si256(both, 1));
}
#define v_any_beyond(x, last)                                                              \
    (_mm256_movemask_epi8(_mm256_cmpgt_epi8(                                               \
         _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi8(0x7f)),                  \
         _mm256_set1_epi8(last))) != 0)
ATTN_INLINE vec v_load_i4(const char *p)
{
    int32_t bytes;
    memcpy(&bytes, p, sizeof bytes);
    const __m128i both = _mm_cvtsi32_si128(bytes);
    const __m128i upper = _mm_and_si128(both, _mm_set1_epi8((char)0xf0)),
                  lower = _mm_and_si128(_mm_slli_epi16(both, 4), _mm_set1_epi8((char)0xf0));
    return _mm256_cvtepi32_ps(
        _mm256_srai_epi32(_mm256_cvtepi8_epi32(_mm_unpacklo_epi8(lower, upper)), 4));
}
#define v_load_e5m2(p)           \
    _mm256_cvtph_ps(_mm_slli_epi16( \
        _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)(p))), 8))
ATTN_INLINE vec v_load_e4m3(const char *p)
{
    const __m128i x = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p));
    const __m128i half =
        _mm_or_si128(_mm_and_si128(_mm_slli_epi16(x, 7), _mm_set1_epi16(0x3f80)),
                     _mm_and_si128(x, _mm_set1_epi16((short)0x8000)));
    const vec y = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256));
    return _mm256_blendv_ps(y, _mm256_set1_ps(NAN),
                            _mm256_cmp_ps(v_abs(y), _mm256_set1_ps(480), _CMP_EQ_OQ));
}
/* 16 codes. */
#define v_load_two_i4 load_two_i4
ATTN_INLINE void load_two_i4(vec *x, const char *p)
{
    const __m128i both = _mm_loadl_epi64((const __m128i *)(const void *)p),
                  high = _mm_set1_epi8((char)0xf0),
                  codes = _mm_unpacklo_epi8(_mm_and_si128(_mm_slli_epi16(both, 4), high),
                                            _mm_and_si128(both, high));
    x[0] = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_cvtepi8_epi32(codes), 4));
    x[1] = _mm256_cvtepi32_ps(
        _mm256_srai_epi32(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)), 4));
}
ATTN_INLINE void v_load_two_e4m3(vec *x, const char *p)
{
    const __m256i code = _mm256_slli_epi16(
                      _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p)), 8),
                  half = e4m3_halves(code),
                  none = _mm256_set1_epi16(0x3f80); /* all bits of an f16 that stands for NaN */
    x[0] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), _mm256_set1_ps(256));
    x[1] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), _mm256_set1_ps(256));
    if (_mm256_movemask_epi8(_mm256_cmpeq_epi16(_mm256_and_si256(half, none), none)) != 0) {
        x[0] = v_load_e4m3(p), x[1] = v_load_e4m3(p + 8);
    }
}
ATTN_INLINE void v_store_bf16(uint16_t *p, vec a)
{
    __m256i u = _mm256_castps_si256(a),
            odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    __m256i h = _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, nan), 16);
    _mm_storeu_si128((__m128i *)p,
                     _mm_packus_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
}

/* See vec_avx512.h. */
#define v_quotient(a, b, inverse) v_corrected(v_mul(a, inverse), a, b, inverse)
#define v_corrected(q, a, b, inverse) _mm256_fnmadd_ps(v_fms(q, b, a), inverse, q)
ATTN_INLINE __m256i and_differ(__m256i differ, vec x)
{
    const __m256i bits = _mm256_castps_si256(x);
    return _mm256_and_si256(differ, _mm256_xor_si256(bits, _mm256_add_epi32(bits, bits)));
}
/* A bit for each lane. */
ATTN_INLINE int which_differ(__m256i differ)
{
    const __m256i sign = _mm256_add_epi32(differ, differ);
    return _mm256_movemask_ps(_mm256_castsi256_ps(sign));
}
ATTN_INLINE bool v_can_quotient(const float *a, int64_t step, int64_t n, vec b, int lanes)
{
    const int used = lanes < VL ? (1 << lanes) - 1 : 0xff;
    __m256i differ = _mm256_set1_epi32(1 << 30);
    for (int64_t i = 0; i < n; i++, a += step) {
        differ = and_differ(differ, v_load(a));
    }
    const vec near = _mm256_and_ps(_mm256_cmp_ps(b, v_set1(0x1p-32f), _CMP_GT_OQ),
                                   _mm256_cmp_ps(b, v_set1(0x1p32f), _CMP_LT_OQ));
    return (which_differ(differ) & _mm256_movemask_ps(near) & used) == used;
}
ATTN_INLINE bool v_can_quotients(const vec *a, const int n)
{
    const __m256i upper = _mm256_set1_epi32(1 << 30);
    __m256i differ = upper;
    ATTN_UNROLL for (int i = 0; i < n; i++) differ = and_differ(differ, a[i]);
    if (which_differ(differ) != 0xff) {
        differ = upper;
        ATTN_UNROLL for (int i = 0; i < n; i++) differ = _mm256_and_si256(
            differ, _mm256_or_si256(and_differ(upper, a[i]),
                                    _mm256_castps_si256(_mm256_cmp_ps(a[i], v_set1(0),
                                                                      _CMP_EQ_OQ))));
    }
    return which_differ(differ) == 0xff;
}

#else

#define vec __m256d
#define VL 4
#define MR 4
#define NV 3
#define AHEAD 3
#define v_load _mm256_loadu_pd
#define v_store _mm256_storeu_pd
#define v_set1 _mm256_set1_pd
#define v_add _mm256_add_pd
#define v_sub _mm256_sub_pd
#define v_mul _mm256_mul_pd
#define v_div _mm256_div_pd
#define v_fma _mm256_fmadd_pd
#define v_fms _mm256_fmsub_pd
#define v_max(m, s) _mm256_max_pd(s, m)
#define v_abs(a) _mm256_andnot_pd(_mm256_set1_pd(-0.0), a)
#define v_select_lt(a, b, x, y) _mm256_blendv_pd(y, x, _mm256_cmp_pd(a, b, _CMP_LT_OQ))
#define v_zero_lt(a, b, y) _mm256_andnot_pd(_mm256_cmp_pd(a, b, _CMP_LT_OQ), y)
#define v_ldexp(a, t, n)                                                                       \
    _mm256_mul_pd(                                                                             \
        a, _mm256_castsi256_pd(_mm256_add_epi64(_mm256_slli_epi64(_mm256_castpd_si256(t), 52), \
                                                _mm256_set1_epi64x(INT64_C(1023) << 52))))
#define v_zip_low _mm256_unpacklo_pd
#define v_zip_high _mm256_unpackhi_pd
#define v_low_halves(a, b) _mm256_permute2f128_pd(a, b, 0x20)
#define v_high_halves(a, b) _mm256_permute2f128_pd(a, b, 0x31)

#endif
