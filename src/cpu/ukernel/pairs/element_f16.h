/*
 * element_f16.h: elements of f16, for split.h.
 */

typedef uint16_t element;
enum { ROW_TYPE = ATTN_F16, ELEMENT_BITS = 11 };

/* Columns c .. c+15 of a row that has them side by side, in f32. */
ATTN_INLINE vec load_whole(const void *row, int64_t c)
{
    return v_load_f16((const uint16_t *)row + c);
}

/* Columns c .. c+15 of a row of n, in f32; zero beyond n. */
static vec load_columns(const void *row, int64_t stride, int64_t c, int64_t n)
{
    const uint16_t *x = row;
    uint16_t column[16] = {0};
    if (stride == 1) {
        int64_t left = n - c;
        __mmask16 some = (__mmask16)(left >= 16 ? 0xffff : left > 0 ? (1 << left) - 1 : 0);
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, x + c));
    }
    for (int64_t i = 0; i < 16 && c + i < n; i++) {
        column[i] = x[(c + i) * stride];
    }
    return v_load_f16(column);
}

/* Stores results of 32 columns, which lie as split_columns() has them. */
ATTN_INLINE void store_results(element *to, vec low, vec high)
{
    v_store_f16(to, low);
    v_store_f16(to + 16, high);
}

/* Columns c .. c+31 of a row of n side by side, in f32; zero beyond n. */
ATTN_INLINE void load_floats(vec *x, const void *row, int64_t c, int64_t n)
{
    x[0] = load_columns(row, 1, c, n), x[1] = load_columns(row, 1, c + 16, n);
}
