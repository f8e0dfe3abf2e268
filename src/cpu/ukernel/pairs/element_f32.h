/*
 * element_f32.h: elements of f32, for split.h.
 */

typedef float element;
enum { ROW_TYPE = ATTN_F32, ELEMENT_BITS = 24 };

/* Columns c .. c+15 of a row that has them side by side, in f32. */
ATTN_INLINE vec load_whole(const void *row, int64_t c)
{
    return v_load((const float *)row + c);
}

/* Columns c .. c+15 of a row of n; zero beyond n. */
static vec load_columns(const void *row, int64_t stride, int64_t c, int64_t n)
{
    const float *x = row;
    if (stride == 1) {
        int64_t left = n - c;
        return _mm512_maskz_loadu_ps((__mmask16)(left >= 16 ? 0xffff
                                                 : left > 0 ? (1 << left) - 1
                                                            : 0),
                                     x + c);
    }
    float column[16] = {0};
    for (int64_t i = 0; i < 16 && c + i < n; i++) {
        column[i] = x[(c + i) * stride];
    }
    return v_load(column);
}

/* Stores results of 32 columns, which lie as split_columns() has them. */
ATTN_INLINE void store_results(element *to, vec low, vec high)
{
    v_store(to, low);
    v_store(to + 16, high);
}

/* Columns c .. c+31 of a row of n side by side, in f32; zero beyond n. */
ATTN_INLINE void load_floats(vec *x, const void *row, int64_t c, int64_t n)
{
    x[0] = load_columns(row, 1, c, n), x[1] = load_columns(row, 1, c + 16, n);
}
