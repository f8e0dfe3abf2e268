/*
 * element_bf16.h: elements of bf16, one part each: loads, rounding. For a table of PARTS = 1.
 */

typedef uint16_t element;

/* Columns c .. c+31 of a row of n, times -1, 0 or 1; zero beyond n. Dword i holds columns 2 i and
 * 2 i + 1, as memory has them. */
enum { LOW_COLUMN = 0, HIGH_COLUMN = 1, COLUMN_STEP = 2 };

ATTN_INLINE void split_columns(__m512i *part, const void *row, int64_t stride, int64_t c, int64_t n,
                               float factor)
{
    const uint16_t *h = row;
    if (stride == 1 && factor == 1 && n - c >= 32) {
        part[0] = _mm512_loadu_si512(h + c);
        return;
    }
    uint16_t column[32] = {0};
    for (int64_t i = 0; stride != 1 && i < 32 && c + i < n; i++) {
        column[i] = h[(c + i) * stride];
    }
    __m512i x = _mm512_loadu_si512(column);
    if (stride == 1) {
        int64_t left = n - c;
        x = _mm512_maskz_loadu_epi16(left >= 32 ? 0xffffffffu
                                     : left > 0 ? (1u << left) - 1
                                                : 0,
                                     h + c);
    }
    vec even = v_mul(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)), v_set1(factor));
    vec odd = v_mul(_mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000))),
                    v_set1(factor));
    part[0] = _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(_mm512_castps_si512(even), 16),
                                      _mm512_castps_si512(odd));
}

/* Dwords of 32 columns of two rows: [column][2]. */
ATTN_INLINE void store_columns(uint16_t *to, __m512i x, __m512i y)
{
    const __m512i low = _mm512_unpacklo_epi16(x, y), high = _mm512_unpackhi_epi16(x, y);
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi64(low, first, high));
    _mm512_storeu_si512(to + 32, _mm512_permutex2var_epi64(low, second, high));
}

/* x rounded to nearest, in the upper halves; the lower halves hold leftovers. A NaN stays one. */
ATTN_INLINE void split(__m512i *part, vec x)
{
    const __m512i bits = _mm512_castps_si512(x);
    part[0] = _mm512_mask_add_epi32(bits, _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), bits,
                                    _mm512_set1_epi32(0x8000));
}

/* The rounding of a probability. A NaN may become a zero: l is NaN as well. */
ATTN_INLINE void split_probability(__m512i *part, vec x)
{
    part[0] = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
}
