/*
 * amx_f32.c: the table for f32 on AMX tiles. Every f32 is the exact sum of three bf16 parts of 8 bits, high, middle,
 * low: x = x0 + x1 + x2. Of the nine products of parts the six of weight 2^-16 and more are taken, x0 y0, x0 y1, x1 y0,
 * x1 y1, x0 y2, x2 y0, each a tile product with f32 sums; what is left out is below 2^-24 of |x||y|. Six tile products
 * cost less than half of the multiply-adds of AVX-512.
 *
 * Panels and the rest are in amx_body.h. Parts below 2^-126 are lost: inputs smaller than about 2^-110 keep fewer bits.
 */

#define NAME f32
#define PARTS 3
#include "amx_tiles.h"

typedef float element;

/* Columns c .. c+15 of a row of n; zero beyond n or for a NULL row. */
static vec load_columns(const void *row, int64_t stride, int64_t c, int64_t n)
{
    const float *x = row;
    if (row && stride == 1) {
        int64_t left = n - c;
        return _mm512_maskz_loadu_ps((__mmask16)(left >= 16 ? 0xffff : left > 0 ? (1 << left) - 1 : 0), x + c);
    }
    float column[16] = {0};
    for (int64_t i = 0; row && i < 16 && c + i < n; i++) {
        column[i] = x[(c + i) * stride];
    }
    return v_load(column);
}

/* x without its lower 16 bits, and the rest in x. */
ATTN_INLINE vec take_part(vec *x)
{
    vec high = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(*x), _mm512_set1_epi32((int)0xffff0000)));
    *x = v_sub(*x, high);
    return high;
}

/* The upper halves of 32 floats, a then b. */
ATTN_INLINE __m512i upper_halves(vec a, vec b)
{
    __m512i low = _mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(a), 16)));
    __m256i high = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(b), 16));
    return _mm512_inserti64x4(low, high, 1);
}

/* Columns c .. c+31 of a row as three vectors of bf16. */
static void split_columns(__m512i *part, const void *row, int64_t stride, int64_t c, int64_t n, float factor)
{
    vec a = v_mul(load_columns(row, stride, c, n), v_set1(factor));
    vec b = v_mul(load_columns(row, stride, c + 16, n), v_set1(factor));
    for (int i = 0; i < PARTS; i++) {
        vec a_part = take_part(&a), b_part = take_part(&b);
        part[i] = upper_halves(a_part, b_part);
    }
}

/* Each product needs at most one operand that the one before did not. */
#define PRODUCTS(c0, c1, ta)  \
    do {                      \
        LOAD_A(ta, 2);        \
        LOAD_B(0);            \
        MULTIPLY(c0, c1, ta); \
        LOAD_A(ta, 1);        \
        MULTIPLY(c0, c1, ta); \
        LOAD_B(1);            \
        MULTIPLY(c0, c1, ta); \
        LOAD_A(ta, 0);        \
        MULTIPLY(c0, c1, ta); \
        LOAD_B(2);            \
        MULTIPLY(c0, c1, ta); \
        LOAD_B(0);            \
        MULTIPLY(c0, c1, ta); \
    } while (0)

/* The three parts of a pair of keys, as dwords, 16 lanes. */
ATTN_INLINE void store_pair(uint16_t *p, vec a, vec b)
{
    for (int i = 0; i < PARTS; i++) {
        __m512i a_part = _mm512_castps_si512(take_part(&a)), b_part = _mm512_castps_si512(take_part(&b));
        _mm512_storeu_si512(p + i * P_PART,
                            _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(a_part, 16), b_part));
    }
}

/* 2^(d c): the exp2 of the other f32 tables. */
ATTN_INLINE vec probability(vec d, vec c, vec least)
{
    return exp2_f32(d, c, least);
}

#include "amx_body.h"
