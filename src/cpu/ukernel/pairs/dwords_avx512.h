/*
 * dwords_avx512.h: operations on 16 dwords, pairs of bf16 numbers or the bits of floats, and masks
 * of lanes, by AVX-512: those that pairs/ has beside the vectors of body/vec_avx512.h.
 *
 *   dwords, lane_mask                 16 dwords; a bit for each of 16 lanes
 *   d_load d_store d_zero d_or        as their names say
 *   d_load_some(p,n)                  the first n of 32 numbers, the others 0
 *   d_load4(p)                        four dwords and zeros
 *   d_pair(p)                         the pair at p in each dword
 *   d_lanes_at(x,at)                  lanes at[0], at[1] .. of x
 *   d_keep_lanes(p,x,mask)            stores x in lanes outside of mask
 *   d_as_floats(x)                    the same bits
 *   d_floats d_odd_floats d_pairs     the floats of lower halves, of upper halves; back from both
 *   d_low_halves d_high_halves(a,b)   the halves of a, each below that of b
 *   d_store_zip(p,a,b)                stores the 32 numbers of a, each before that of b
 *   d_zip_low d_zip_high(a,b)         halves of d_store_zip, in each quarter of a vector by itself
 *   d_even(row,step)                  16 pointers are `step` bytes apart
 *   d_columns(x,row,apart)            8 columns of 16 rows of dwords
 *   v_load_quads(p,step)              rows p, p + step .. of four floats
 *   d_store_quads(p,step,x)           four dwords to each of p, p + step ..
 *   v_repeat_quad(x)                  the first four lanes four times
 *   v_add_two_quads(sum,a,b)          sum + each four lanes of a, then of b, in turn
 *   d_upper_halves(a,b)               the upper halves of a below those of b
 *   d_rounded(x) d_rounded_number(x)  a float rounded to bf16 in the upper half, the lower one left
 *                                     over; the second for a NaN, too
 *   v_eq v_gt v_not_lt                masks; the last is true for a NaN
 *   v_pick(mask,a,b)                  a in lanes of mask, else b
 *   v_mul_unless_lt(d,least,a,b)      d < least ? 0 : a b
 *   v_at_most_0(x)                    the minimum of 0 and x, or a NaN
 *   v_fraction(z) v_power(y,z)        z - floor(z); y 2^floor(z), 0 below 2^-126
 *   v_power_flushed(y,z)              the same where the processor flushes small results to 0
 */
#define dwords __m512i
#define lane_mask __mmask16

#define d_load(p) _mm512_loadu_si512(p)
#define d_store(p, x) _mm512_storeu_si512(p, x)
#define d_load4(p) _mm512_zextsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define d_lanes_at(x, at) _mm512_permutexvar_epi32(at, x)
#define d_zero _mm512_setzero_si512
#define d_or _mm512_or_si512
#define d_keep_lanes(p, x, mask) _mm512_mask_storeu_epi32(p, (__mmask16) ~(mask), x)
#define d_as_floats _mm512_castsi512_ps
#define d_floats(x) _mm512_castsi512_ps(_mm512_slli_epi32(x, 16))
#define d_odd_floats(x) \
    _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000)))
#define d_pairs(even, odd)                                                               \
    _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(_mm512_castps_si512(even), 16), \
                            _mm512_castps_si512(odd))
#define d_low_halves(a, b) _mm512_mask_blend_epi16(0xaaaaaaaau, a, _mm512_slli_epi32(b, 16))
#define d_high_halves(a, b) _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(a, 16), b)
#define d_rounded(x) _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000))
#define d_rounded_number(x)                                                              \
    _mm512_mask_add_epi32(_mm512_castps_si512(x), _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), \
                          _mm512_castps_si512(x), _mm512_set1_epi32(0x8000))

#define d_zip_low _mm512_unpacklo_epi16
#define d_zip_high _mm512_unpackhi_epi16

#define v_eq(a, b) _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ)
#define v_gt(a, b) _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ)
#define v_not_lt(a, b) _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ)
#define v_pick(mask, a, b) _mm512_mask_mov_ps(b, mask, a)
#define v_mul_unless_lt(d, least, a, b) _mm512_maskz_mul_ps(v_not_lt(d, least), a, b)
#define v_at_most_0(x) _mm512_min_ps(v_set1(0), x)
#define v_fraction(z) _mm512_reduce_ps(z, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)
#define v_power(y, z) _mm512_maskz_scalef_ps(v_not_lt(z, v_set1(-126)), y, z)
#define v_power_flushed _mm512_scalef_ps

enum { VECTOR_BITS = 512, CAN_FLUSH = 1 }; /* cpu/machine/host.h sets flush-to-zero for the table */

ATTN_INLINE bool d_even(const char *const *row, int64_t step)
{
    const __m512i first = _mm512_sub_epi64(_mm512_loadu_si512(row + 1), _mm512_loadu_si512(row)),
                  last =
                      _mm512_sub_epi64(_mm512_loadu_si512(row + 8), _mm512_loadu_si512(row + 7)),
                  all = _mm512_set1_epi64(step);
    return (_mm512_cmpeq_epi64_mask(first, all) & _mm512_cmpeq_epi64_mask(last, all)) == 0xFF;
}

ATTN_INLINE dwords d_pair(const uint16_t *p)
{
    uint32_t pair;
    memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32((int)pair);
}

ATTN_INLINE dwords d_load_some(const uint16_t *p, int64_t n)
{
    return _mm512_maskz_loadu_epi16(n >= 32 ? 0xffffffffu : n > 0 ? (1u << n) - 1 : 0, p);
}

ATTN_INLINE void d_store_zip(uint16_t *p, dwords a, dwords b)
{
    const dwords low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b);
    const dwords first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const dwords second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    d_store(p, _mm512_permutex2var_epi64(low, first, high));
    d_store(p + 32, _mm512_permutex2var_epi64(low, second, high));
}

ATTN_INLINE dwords d_upper_halves(dwords a, dwords b)
{
    const dwords upper = _mm512_set4_epi32(0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302);
    return _mm512_mask_shuffle_epi8(b, 0x3333333333333333u, a, upper);
}

/* Rows become columns, 4 x 4 dwords: of each four of n vectors, in each quarter by itself. */
ATTN_INLINE void d_shuffle(dwords *x, const int n)
{
    ATTN_UNROLL for (int i = 0; i < n; i += 4)
    {
        const dwords a = _mm512_unpacklo_epi32(x[i], x[i + 1]),
                     b = _mm512_unpackhi_epi32(x[i], x[i + 1]),
                     c = _mm512_unpacklo_epi32(x[i + 2], x[i + 3]),
                     d = _mm512_unpackhi_epi32(x[i + 2], x[i + 3]);
        x[i] = _mm512_unpacklo_epi64(a, c);
        x[i + 1] = _mm512_unpackhi_epi64(a, c);
        x[i + 2] = _mm512_unpacklo_epi64(b, d);
        x[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
}

/* Rows become columns, 16 x 16 dwords. */
ATTN_INLINE void d_transpose(dwords *x)
{
    dwords a[16];
    d_shuffle(x, 16);
    ATTN_UNROLL for (int i = 0; i < 4; i++)
    {
        a[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
        a[i + 4] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
        a[i + 8] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
        a[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
    }
    ATTN_UNROLL for (int i = 0; i < 4; i++)
    {
        x[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
        x[i + 8] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
        x[i + 4] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
        x[i + 12] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
    }
}

ATTN_INLINE void d_store_quads(uint16_t *p, int64_t step, dwords x)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_castsi512_si128(x));
    _mm_storeu_si128((__m128i *)(void *)(p + step), _mm512_extracti32x4_epi32(x, 1));
    _mm_storeu_si128((__m128i *)(void *)(p + 2 * step), _mm512_extracti32x4_epi32(x, 2));
    _mm_storeu_si128((__m128i *)(void *)(p + 3 * step), _mm512_extracti32x4_epi32(x, 3));
}

#define ADD_QUADS(i)                                                \
    sum = _mm_add_ps(_mm_add_ps(sum, _mm512_extractf32x4_ps(a, i)), \
                     _mm512_extractf32x4_ps(b, i))
ATTN_INLINE vec v_add_two_quads(vec to, vec a, vec b)
{
    __m128 sum = _mm512_castps512_ps128(to);
    ADD_QUADS(0);
    ADD_QUADS(1);
    ADD_QUADS(2);
    ADD_QUADS(3);
    return _mm512_zextps128_ps512(sum);
}
#undef ADD_QUADS

/* 32 bytes of each of two places. */
ATTN_INLINE dwords d_load_halves(const void *low, const void *high)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(low)),
                              _mm256_loadu_si256(high), 1);
}

/* The row, one of 16, in the lower half of vector i < 8; that of the upper half is 4 later. */
#define ROW_OF_HALF(i) ((i) / 4 * 8 + (i) % 4)

/* Half lines of 16 rows become columns: x[c] = dword c of each. Fewer registers and shuffles than
 * for lines: the next rows' shuffles overlap products. */
ATTN_INLINE void d_half_columns(dwords *x)
{
    dwords a[8];
    d_shuffle(x, 8);
    ATTN_UNROLL for (int i = 0; i < 4; i++)
    {
        a[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
        a[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
    }
    ATTN_UNROLL for (int i = 0; i < 8; i++) x[i] = a[i];
}

/* The same of rows that are `apart` numbers from each to the next. */
ATTN_INLINE void d_columns(dwords *x, const uint16_t *row, int64_t apart)
{
    ATTN_UNROLL for (int i = 0; i < 8; i++)
    {
        const uint16_t *at = row + ROW_OF_HALF(i) * apart;
        x[i] = d_load_halves(at, at + 4 * apart);
    }
    d_half_columns(x);
}

/* Rows become columns: to[c * stride + r] = from[r][c], 16 x 16 dwords. */
static void transpose16(uint32_t *to, int64_t stride, const dwords *from)
{
    dwords x[16];
    ATTN_UNROLL for (int i = 0; i < 16; i++) x[i] = from[i];
    d_transpose(x);
    ATTN_UNROLL for (int i = 0; i < 16; i++) d_store(to + i * stride, x[i]);
}
