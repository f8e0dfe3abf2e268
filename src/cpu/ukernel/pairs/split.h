/*
 * split.h: elements as sums of PARTS bf16 parts, for the tables whose elements have more bits than
 * bf16. Included after element_f16.h or element_f32.h, whose load_columns() it uses.
 */

/* x without its lower 16 bits, and the rest in x. */
ATTN_INLINE __m512i cut_part(vec *x)
{
    const __m512i high =
        _mm512_and_si512(_mm512_castps_si512(*x), _mm512_set1_epi32((int)0xffff0000));
    *x = v_sub(*x, _mm512_castsi512_ps(high));
    return high;
}

/* Lanes that can be rounded; the others would become infinite, or are NaN. */
ATTN_INLINE __mmask16 can_round(vec x)
{
    return _mm512_cmp_ps_mask(v_abs(x), v_set1(3.38e38f), _CMP_LT_OQ);
}

/* The bf16 nearest to x, and the rest in x; lanes without `round` are cut off. Cutting off
 * everywhere would make the omitted products up to eight times as large, and all of one sign. */
ATTN_INLINE __m512i nearest_part(vec *x, __mmask16 round)
{
    const __m512i bits = _mm512_castps_si512(*x);
    const __m512i up = _mm512_mask_add_epi32(bits, round, bits, _mm512_set1_epi32(0x8000));
    const __m512i high = _mm512_and_si512(up, _mm512_set1_epi32((int)0xffff0000));
    *x = v_sub(*x, _mm512_castsi512_ps(high));
    return high;
}

/* Columns c .. c+31 of a row as PARTS vectors of bf16: dword i holds columns i and 16 + i. No
 * shuffle is needed, and a product sums over columns in any order that K and Q have alike. Where
 * parts have room for all bits the last one is the rest as it is. No f16 becomes infinite, and of
 * a NaN the rest stays one. */
enum { LOW_COLUMN = 0, HIGH_COLUMN = 16, COLUMN_STEP = 1, EXACT = ELEMENT_BITS <= 8 * PARTS };

/* The parts of a in lower halves, those of b in upper ones. */
ATTN_INLINE void split_two(__m512i *part, vec a, vec b)
{
    const __mmask16 round_a = ELEMENT_BITS < 24 ? 0xffff : can_round(a),
                    round_b = ELEMENT_BITS < 24 ? 0xffff : can_round(b);
    for (int i = 0; i < PARTS - EXACT; i++) {
        const __m512i low = nearest_part(&a, round_a), high = nearest_part(&b, round_b);
        part[i] = d_pairs(_mm512_castsi512_ps(low), _mm512_castsi512_ps(high));
    }
    if (EXACT) {
        part[PARTS - 1] = d_pairs(a, b);
    }
}

ATTN_INLINE void split_columns(__m512i *part, const void *row, int64_t stride, int64_t c, int64_t n,
                               float factor)
{
    if (stride == 1 && factor == 1 && n - c >= 32) {
        split_two(part, load_whole(row, c), load_whole(row, c + 16));
    } else {
        split_two(part, v_mul(load_columns(row, stride, c, n), v_set1(factor)),
                  v_mul(load_columns(row, stride, c + 16, n), v_set1(factor)));
    }
}

/* Columns c .. c+31 of two rows of n side by side, the second or both zeros (NULL), as PARTS pairs
 * of vectors: dword i of *low is column PAIR_LOW(i), of *high that PAIR_HIGH beyond. */
#define PAIR_LOW(i) (i)
enum { PAIR_HIGH = 16 };

ATTN_INLINE void split_keys(__m512i *low, __m512i *high, const void *x, const void *y, int64_t c,
                            int64_t n)
{
    const vec zero = v_set1(0);
    if (y && n - c >= 32) {
        split_two(low, load_whole(x, c), load_whole(y, c));
        split_two(high, load_whole(x, c + 16), load_whole(y, c + 16));
    } else if (x) {
        split_two(low, load_columns(x, 1, c, n), y ? load_columns(y, 1, c, n) : zero);
        split_two(high, load_columns(x, 1, c + 16, n), y ? load_columns(y, 1, c + 16, n) : zero);
    } else {
        for (int i = 0; i < PARTS; i++) {
            low[i] = high[i] = d_zero();
        }
    }
}

/* Dwords of 32 columns of two rows as split_columns() gives them, in memory: [column][2]. */
ATTN_INLINE void store_columns(uint16_t *to, __m512i x, __m512i y)
{
    _mm512_storeu_si512(to, _mm512_mask_blend_epi16(0xaaaaaaaau, x, _mm512_slli_epi32(y, 16)));
    _mm512_storeu_si512(to + 32, _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(x, 16), y));
}

/* The parts of x, a P or dS, in upper halves. All but the last are cut off: the other factor's
 * parts have either sign. The last of three is the whole rest; the last of two is rounded, and the
 * lower halves hold leftovers. */
ATTN_INLINE void split(__m512i *part, vec x)
{
    for (int i = 0; i + 1 < PARTS; i++) {
        part[i] = cut_part(&x);
    }
    const __m512i last = _mm512_castps_si512(x);
    part[PARTS - 1] = PARTS == 3 ? last : _mm512_add_epi32(last, _mm512_set1_epi32(0x8000));
}

ATTN_INLINE void split_probability(__m512i *part, vec x)
{
    split(part, x);
}
