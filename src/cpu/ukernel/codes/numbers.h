/*
 * numbers.h: codes as bf16 numbers, which are exact. Each half of a number of a code of 8 bits
 * comes from a table of 128 bytes (AVX512_VBMI): floats are looked up without their sign, integers
 * by |code| - 1. Codes of 4 bits have a table of numbers.
 */

/* The bf16 of an integer from 1 to 128, and of a float without its sign. Powers of two and smaller
 * floats have an exponent of their own. */
#define INTEGER_LOG(n) \
    ((n) > 127 ? 7 : (n) > 63 ? 6 : (n) > 31 ? 5 : (n) > 15 ? 4 : (n) > 7 ? 3 : (n) > 3 ? 2 \
                                                                                    : (n) > 1)
#define NUMBER_I8(at)                               \
    ((127 + INTEGER_LOG((at) + 1)) << 7 |           \
     ((((at) + 1) << (7 - INTEGER_LOG((at) + 1))) & 127))
#define NUMBER_E4M3(code)                                                           \
    ((code) == 127 ? 0x7fc0                                                         \
     : (code) > 7  ? (120 << 7) + ((code) << 4)                                     \
     : (code) == 0 ? 0                                                              \
                   : (118 + INTEGER_LOG(code)) << 7 | ((code) << (7 - INTEGER_LOG(code)) & 127))
#define NUMBER_E5M2(code)                                                           \
    ((code) > 124   ? 0x7fc0                                                        \
     : (code) > 123 ? 0x7f80                                                        \
     : (code) > 3   ? (112 << 7) + ((code) << 5)                                    \
     : (code) == 0  ? 0                                                             \
                    : (111 + INTEGER_LOG(code)) << 7 | ((code) << (7 - INTEGER_LOG(code)) & 127))

#define EIGHT(half, of, n)                                                               \
    half(of(n)), half(of(n + 1)), half(of(n + 2)), half(of(n + 3)), half(of(n + 4)),     \
        half(of(n + 5)), half(of(n + 6)), half(of(n + 7))
#define HALVES(half, of)                                                                 \
    {                                                                                    \
        EIGHT(half, of, 0), EIGHT(half, of, 8), EIGHT(half, of, 16), EIGHT(half, of, 24), \
            EIGHT(half, of, 32), EIGHT(half, of, 40), EIGHT(half, of, 48),               \
            EIGHT(half, of, 56), EIGHT(half, of, 64), EIGHT(half, of, 72),               \
            EIGHT(half, of, 80), EIGHT(half, of, 88), EIGHT(half, of, 96),               \
            EIGHT(half, of, 104), EIGHT(half, of, 112), EIGHT(half, of, 120)             \
    }
#define LOW_HALF(x) (uint8_t)((x) & 255)
#define HIGH_HALF(x) (uint8_t)((x) >> 8)
#define BOTH_HALVES(of) {HALVES(LOW_HALF, of), HALVES(HIGH_HALF, of)}

static const uint8_t number_bytes[3][2][128] = {BOTH_HALVES(NUMBER_I8), BOTH_HALVES(NUMBER_E4M3),
                                                BOTH_HALVES(NUMBER_E5M2)};

/* Numbers of codes of 4 bits, by the lower bits of a word. */
static const uint16_t nibble_table[32] = {
    0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, /* 0 .. 7 */
    0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, /* -8 .. -1 */
    0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, /* whatever bit 4 is */
    0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80};

/* The tables of a type, in registers; of i4x2 low[0]. */
typedef struct numbers {
    dwords low[2], high[2];
} numbers;

ATTN_INLINE numbers numbers_of(const int32_t dtype)
{
    if (dtype == ATTN_I4X2) {
        return (numbers){.low = {d_load(nibble_table)}};
    }
    const uint8_t(*of)[128] = number_bytes[dtype == ATTN_I8 ? 0 : dtype == ATTN_E4M3 ? 1 : 2];
    return (numbers){{d_load(of[0]), d_load(of[0] + 64)}, {d_load(of[1]), d_load(of[1] + 64)}};
}

/* Halves of the numbers of 64 codes. */
ATTN_INLINE void number_halves(dwords *low, dwords *high, dwords x, const numbers *of,
                               const int32_t dtype)
{
    if (dtype == ATTN_I8) {
        const __mmask64 some = _mm512_test_epi8_mask(x, x);
        const dwords at = _mm512_sub_epi8(_mm512_abs_epi8(x), _mm512_set1_epi8(1));
        *low = _mm512_maskz_permutex2var_epi8(some, of->low[0], at, of->low[1]);
        *high = _mm512_maskz_permutex2var_epi8(some, of->high[0], at, of->high[1]);
    } else {
        *low = _mm512_permutex2var_epi8(of->low[0], x, of->low[1]);
        *high = _mm512_permutex2var_epi8(of->high[0], x, of->high[1]);
    }
    *high = _mm512_ternarylogic_epi32(*high, x, _mm512_set1_epi8((char)0x80), 0xf8); /* | x & y */
}

/* The numbers of the lowest codes of 4 bits of 32 words. */
ATTN_INLINE dwords nibble_numbers(dwords x, const numbers *of)
{
    return _mm512_permutexvar_epi16(x, of->low[0]);
}

/* The first n of 64 bytes, or of 16, the others 0. */
ATTN_INLINE dwords load_bytes(const char *at, int64_t n)
{
    return n >= 64 ? d_load(at)
                   : _mm512_maskz_loadu_epi8(((__mmask64)1 << (n > 0 ? n : 0)) - 1, at);
}

ATTN_INLINE __m128i load_few_bytes(const char *at, int64_t n)
{
    return n >= 16 ? _mm_loadu_si128((const __m128i *)(const void *)at)
                   : _mm_maskz_loadu_epi8((__mmask16)((1 << (n > 0 ? n : 0)) - 1), at);
}

/* The numbers of the first n of 64 codes side by side, 32 each, the others 0. */
ATTN_INLINE void line_numbers(dwords *to, const char *at, int64_t n, const numbers *of,
                              const int32_t dtype)
{
    if (dtype == ATTN_I4X2) {
        ATTN_UNROLL for (int i = 0; i < 2; i++)
        {
            const dwords x = _mm512_cvtepu8_epi32(load_few_bytes(at + 16 * i, n / 2 - 16 * i));
            to[i] = nibble_numbers(_mm512_or_si512(x, _mm512_slli_epi32(x, 12)), of);
        }
    } else {
        const dwords order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
        dwords low, high;
        number_halves(&low, &high, _mm512_permutexvar_epi64(order, load_bytes(at, n)), of, dtype);
        to[0] = _mm512_unpacklo_epi8(low, high), to[1] = _mm512_unpackhi_epi8(low, high);
    }
}

/* Numbers of 16 codes side by side as floats. */
ATTN_INLINE vec load_numbers(const char *codes, int32_t dtype)
{
    return dtype == ATTN_I8     ? v_load_i8(codes)
           : dtype == ATTN_I4X2 ? v_load_i4(codes)
           : dtype == ATTN_E4M3 ? v_load_e4m3(codes)
                                : v_load_e5m2(codes);
}

/* Columns c .. c+15, as far as below n, of row `row` as bf16 numbers in the upper halves of dwords:
 * codes, or if the scale of the row is not finite, values. */
ATTN_INLINE dwords row_numbers(const attn_rows *src, int64_t row, int64_t c, int64_t n, bool values)
{
    const char *at = (const char *)src->data + row * src->row_stride;
    const int64_t each = attn_code_columns(src->dtype);
    if (!values && src->col_stride == 1 && c + 16 <= n) {
        return _mm512_castps_si512(load_numbers(at + c / each, src->dtype));
    }
    uint32_t number[16] = {0};
    for (int64_t i = c; i < c + 16 && i < n; i++) {
        const float x =
            values ? attn_row_value(at, src->col_stride, src->dtype, &src->codes, row, i)
                   : attn_code_at(at + i / each * src->col_stride, src->dtype, i % each);
        number[i - c] = (uint32_t)attn_f32_to_bf16(x) << 16;
    }
    return d_load(number);
}

/* Puts the scales of a row, one for each of `columns` of its n columns, to[0], to[apart] .. False,
 * and 1 put, if one is not finite. */
ATTN_INLINE bool row_scales(float *to, int64_t apart, const attn_rows *src, int64_t row, int64_t n,
                            int64_t columns)
{
    bool finite = true;
    for (int64_t c = 0; c < n; c += columns, to += apart) {
        *to = attn_row_scale(&src->codes, row, c / src->codes.group);
        finite &= *to - *to == 0;
    }
    for (int64_t c = 0; c < n && !finite; c += columns) {
        to -= apart, *to = 1;
    }
    return finite;
}
