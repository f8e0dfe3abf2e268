/*
 * amx_split.h: elements as sums of PARTS bf16 parts, for the tables whose elements have more bits than bf16. Included
 * by amx_f16.c and amx_f32.c, which define load_columns().
 */

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

/* Columns c .. c+31 of a row as PARTS vectors of bf16. */
ATTN_INLINE void split_columns(__m512i *part, const void *row, int64_t stride, int64_t c, int64_t n, float factor)
{
    vec a = v_mul(load_columns(row, stride, c, n), v_set1(factor));
    vec b = v_mul(load_columns(row, stride, c + 16, n), v_set1(factor));
    for (int i = 0; i < PARTS; i++) {
        vec a_part = take_part(&a), b_part = take_part(&b);
        part[i] = upper_halves(a_part, b_part);
    }
}

/* The parts of x in upper halves; the last one is rounded to nearest, the others leave their rest to it. The lower
 * halves are left over. */
ATTN_INLINE void split(__m512i *part, vec x)
{
    for (int i = 0; i + 1 < PARTS; i++) {
        part[i] = _mm512_castps_si512(take_part(&x));
    }
    part[PARTS - 1] = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
}
