/*
 * avx512.h: the intrinsics of AVX-512, AVX512_BF16 and AMX tiles in software, so that
 * machines without them test the kernels on them. The compiler includes it before each kernel file
 * of a build with ATTN_EMULATE (CMakeLists.txt). AVX-512 is SIMDe's, completed where SIMDe 0.7.4
 * lacks an intrinsic; dot products of pairs are in pairs.h, tiles in tiles.h.
 */
#ifndef TESTS_EMULATE_AVX512_H
#define TESTS_EMULATE_AVX512_H

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>
#pragma GCC diagnostic pop

#include <math.h>
#include <stdint.h>
#include <string.h>

#define EMULATED(type) static inline __attribute__((always_inline, unused)) type

/* Masked-off elements are not touched: their memory may be absent. */
EMULATED(__m512) emulated_maskz_loadu_ps(uint16_t mask, const float *p)
{
    float x[16] = {0};
    for (int i = 0; i < 16; i++) {
        if (mask >> i & 1) {
            x[i] = p[i];
        }
    }
    return _mm512_loadu_ps(x);
}

EMULATED(__m512i) emulated_512_maskz_loadu_epi16(uint32_t mask, const uint16_t *p)
{
    uint16_t x[32] = {0};
    for (int i = 0; i < 32; i++) {
        if (mask >> i & 1) {
            x[i] = p[i];
        }
    }
    return _mm512_loadu_si512(x);
}

EMULATED(__m512i) emulated_512_maskz_loadu_epi8(uint64_t mask, const void *p)
{
    uint8_t x[64] = {0};
    for (int i = 0; i < 64; i++) {
        if (mask >> i & 1) {
            x[i] = ((const uint8_t *)p)[i];
        }
    }
    return _mm512_loadu_si512(x);
}

EMULATED(__m128i) emulated_128_maskz_loadu_epi8(uint16_t mask, const void *p)
{
    uint8_t x[16] = {0};
    for (int i = 0; i < 16; i++) {
        if (mask >> i & 1) {
            x[i] = ((const uint8_t *)p)[i];
        }
    }
    return _mm_loadu_si128((const __m128i *)x);
}

EMULATED(__m512i) emulated_cvtepu8_epi32(__m128i a)
{
    uint8_t x[16];
    uint32_t y[16];
    _mm_storeu_si128((__m128i *)x, a);
    for (int i = 0; i < 16; i++) {
        y[i] = x[i];
    }
    return _mm512_loadu_si512(y);
}

EMULATED(uint32_t) emulated_testn_epi16_mask(__m512i a, __m512i b)
{
    uint16_t x[32], y[32];
    uint32_t mask = 0;
    _mm512_storeu_si512(x, a);
    _mm512_storeu_si512(y, b);
    for (int i = 0; i < 32; i++) {
        mask |= (uint32_t)((x[i] & y[i]) == 0) << i;
    }
    return mask;
}

EMULATED(__m256i) emulated_256_maskz_loadu_epi16(uint16_t mask, const uint16_t *p)
{
    uint16_t x[16] = {0};
    for (int i = 0; i < 16; i++) {
        if (mask >> i & 1) {
            x[i] = p[i];
        }
    }
    return _mm256_loadu_si256((const __m256i *)x);
}

EMULATED(void) emulated_mask_storeu_epi32(void *to, uint16_t mask, __m512i a)
{
    uint32_t x[16];
    _mm512_storeu_si512(x, a);
    for (int i = 0; i < 16; i++) {
        if (mask >> i & 1) {
            memcpy((char *)to + 4 * i, x + i, 4);
        }
    }
}

EMULATED(__m512) emulated_cvtph_ps(__m256i h)
{
    float x[16];
    _mm256_storeu_ps(x, _mm256_cvtph_ps(_mm256_castsi256_si128(h)));
    _mm256_storeu_ps(x + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)));
    return _mm512_loadu_ps(x);
}

EMULATED(__m256i) emulated_cvtps_ph(__m512 a)
{
    float x[16];
    _mm512_storeu_ps(x, a);
    return _mm256_set_m128i(_mm256_cvtps_ph(_mm256_loadu_ps(x + 8), _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(_mm256_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT));
}

EMULATED(__m512i) emulated_cvtepu16_epi32(__m256i h)
{
    uint16_t x[16];
    uint32_t y[16];
    _mm256_storeu_si256((__m256i *)x, h);
    for (int i = 0; i < 16; i++) {
        y[i] = x[i];
    }
    return _mm512_loadu_si512(y);
}

EMULATED(__m256i) emulated_cvtepi32_epi16(__m512i a)
{
    uint32_t x[16];
    uint16_t y[16];
    _mm512_storeu_si512(x, a);
    for (int i = 0; i < 16; i++) {
        y[i] = (uint16_t)x[i];
    }
    return _mm256_loadu_si256((const __m256i *)y);
}

EMULATED(__m512i) emulated_zextsi128_si512(__m128i a)
{
    uint32_t x[16] = {0};
    _mm_storeu_si128((__m128i *)x, a);
    return _mm512_loadu_si512(x);
}

/* Within each four elements. */
EMULATED(__m512) emulated_permutevar_ps(__m512 a, __m512i which)
{
    float x[16], y[16];
    uint32_t at[16];
    _mm512_storeu_ps(x, a);
    _mm512_storeu_si512(at, which);
    for (int i = 0; i < 16; i++) {
        y[i] = x[(i & ~3) + (int)(at[i] & 3)];
    }
    return _mm512_loadu_ps(y);
}

/* x - floor(x), 0 for infinities: the one rounding that the kernels ask for. */
EMULATED(__m512) emulated_reduce_ps(__m512 a)
{
    float x[16];
    _mm512_storeu_ps(x, a);
    for (int i = 0; i < 16; i++) {
        x[i] = isinf(x[i]) ? 0 : x[i] - floorf(x[i]);
    }
    return _mm512_loadu_ps(x);
}

/* SIMDe takes a subnormal b for 0; the processor does so only if told to. */
EMULATED(__m512) emulated_maskz_scalef_ps(__mmask16 mask, __m512 a, __m512 b)
{
    float x[16], y[16];
    _mm512_storeu_ps(x, a);
    _mm512_storeu_ps(y, b);
    for (int i = 0; i < 16; i++) {
        const float n = fminf(fmaxf(floorf(y[i]), -1000), 1000);
        x[i] = !(mask >> i & 1) ? 0 : isnan(y[i]) ? y[i] : ldexpf(x[i], (int)n);
    }
    return _mm512_loadu_ps(x);
}

EMULATED(__m512i) emulated_cvtepi8_epi32(__m128i h)
{
    int8_t x[16];
    int32_t y[16];
    memcpy(x, &h, sizeof x);
    for (int i = 0; i < 16; i++) {
        y[i] = x[i];
    }
    return _mm512_loadu_si512(y);
}

EMULATED(__m512i) emulated_srai_epi32(__m512i a, int bits)
{
    int32_t x[16];
    _mm512_storeu_si512(x, a);
    for (int i = 0; i < 16; i++) {
        x[i] >>= bits;
    }
    return _mm512_loadu_si512(x);
}

EMULATED(__m512) emulated_cvtepi32_ps(__m512i a)
{
    int32_t x[16];
    float y[16];
    _mm512_storeu_si512(x, a);
    for (int i = 0; i < 16; i++) {
        y[i] = (float)x[i];
    }
    return _mm512_loadu_ps(y);
}

EMULATED(__m512) emulated_zextps128_ps512(__m128 a)
{
    float x[16] = {0};
    _mm_storeu_ps(x, a);
    return _mm512_loadu_ps(x);
}

EMULATED(__m512d) emulated_zextpd256_pd512(__m256d a)
{
    double x[8] = {0};
    _mm256_storeu_pd(x, a);
    return _mm512_loadu_pd(x);
}

EMULATED(__m512i) emulated_512_shuffle_epi32(__m512i a, int order)
{
    int32_t x[16], y[16];
    _mm512_storeu_si512(x, a);
    for (int i = 0; i < 16; i++) {
        y[i] = x[i / 4 * 4 + (order >> i % 4 * 2 & 3)];
    }
    return _mm512_loadu_si512(y);
}

/* SIMDe's loops keep gcc from seeing that references are set before they are read. */
#pragma GCC diagnostic ignored "-Wuninitialized"

#define _mm512_zextpd256_pd512(a) emulated_zextpd256_pd512(a)
#define _mm512_zextps128_ps512(a) emulated_zextps128_ps512(a)
#define _mm512_shuffle_f64x2(a, b, order)                                           \
    simde_mm512_castsi512_pd(simde_mm512_shuffle_i32x4(simde_mm512_castpd_si512(a), \
                                                       simde_mm512_castpd_si512(b), order))
#define _mm512_zextsi128_si512(a) emulated_zextsi128_si512(a)
#define _mm512_permutevar_ps(a, which) emulated_permutevar_ps(a, which)
#define _mm512_shuffle_f32x4(a, b, order) simde_mm512_shuffle_f32x4(a, b, order)
#define _mm512_shuffle_epi32(a, order) emulated_512_shuffle_epi32(a, order)
#define _mm512_cvtepi8_epi32(h) emulated_cvtepi8_epi32(h)
#define _mm512_srai_epi32(a, bits) emulated_srai_epi32(a, bits)
#define _mm512_cvtepi32_ps(a) emulated_cvtepi32_ps(a)
#define _mm512_maskz_loadu_ps(mask, p) emulated_maskz_loadu_ps(mask, p)
#define _mm512_maskz_loadu_epi8(mask, p) emulated_512_maskz_loadu_epi8(mask, p)
#define _mm_maskz_loadu_epi8(mask, p) emulated_128_maskz_loadu_epi8(mask, p)
#define _mm512_cvtepu8_epi32(a) emulated_cvtepu8_epi32(a)
#define _mm512_testn_epi16_mask(a, b) emulated_testn_epi16_mask(a, b)
#define _mm512_maskz_loadu_epi16(mask, p) emulated_512_maskz_loadu_epi16(mask, p)
#define _mm256_maskz_loadu_epi16(mask, p) emulated_256_maskz_loadu_epi16(mask, p)
#define _mm512_mask_storeu_epi32(to, mask, a) emulated_mask_storeu_epi32(to, mask, a)
#define _mm512_cvtph_ps(h) emulated_cvtph_ps(h)
#define _mm512_cvtps_ph(a, rounding) emulated_cvtps_ph(a)
#define _mm512_cvtepu16_epi32(h) emulated_cvtepu16_epi32(h)
#define _mm512_cvtepi32_epi16(a) emulated_cvtepi32_epi16(a)
#define _mm512_reduce_ps(a, rounding) emulated_reduce_ps(a)
#undef _mm512_maskz_scalef_ps
#define _mm512_maskz_scalef_ps(mask, a, b) emulated_maskz_scalef_ps(mask, a, b)

#include "pairs.h"
#include "tiles.h"

#endif
