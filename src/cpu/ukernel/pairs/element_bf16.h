/*
 * element_bf16.h: elements of bf16, one part each: loads, rounding. For a table of PARTS = 1.
 */

typedef uint16_t element;
enum { ROW_TYPE = ATTN_BF16 };

/* Columns c .. c+31 of a row of n, times -1, 0 or 1; zero beyond n. Dword i holds columns 2 i and
 * 2 i + 1, as memory has them. */
enum { LOW_COLUMN = 0, HIGH_COLUMN = 1, COLUMN_STEP = 2 };

ATTN_INLINE void split_columns(dwords *part, const void *row, int64_t stride, int64_t c, int64_t n,
                               float factor)
{
    const uint16_t *h = row;
    if (stride == 1 && factor == 1 && n - c >= 32) {
        part[0] = d_load(h + c);
        return;
    }
    uint16_t column[32] = {0};
    for (int64_t i = 0; stride != 1 && i < 32 && c + i < n; i++) {
        column[i] = h[(c + i) * stride];
    }
    dwords x = d_load(column);
    if (stride == 1) {
        x = d_load_some(h + c, n - c);
    }
    part[0] = d_pairs(v_mul(d_floats(x), v_set1(factor)), v_mul(d_odd_floats(x), v_set1(factor)));
}

/* Dwords of 32 columns of two rows: [column][2]. */
ATTN_INLINE void store_columns(uint16_t *to, dwords x, dwords y)
{
    d_store_zip(to, x, y);
}

/* The same for pv_few: dword i of *low is column PAIR_LOW(i), of *high that PAIR_HIGH beyond. */
#define PAIR_LOW(i) ((i) / 4 * 8 + (i) % 4)
enum { PAIR_HIGH = 4 };

ATTN_INLINE void pair_columns(dwords *low, dwords *high, dwords x, dwords y)
{
    *low = d_zip_low(x, y), *high = d_zip_high(x, y);
}

/* Columns c .. c+31 of two rows of n side by side, the second or both zeros (NULL), so paired. */
ATTN_INLINE void split_keys(dwords *low, dwords *high, const void *x, const void *y, int64_t c,
                            int64_t n)
{
    const uint16_t *first = x, *second = y;
    if (y && n - c >= 32) {
        pair_columns(low, high, d_load(first + c), d_load(second + c));
    } else {
        pair_columns(low, high, x ? d_load_some(first + c, n - c) : d_zero(),
                     y ? d_load_some(second + c, n - c) : d_zero());
    }
}

/* x rounded to nearest, in the upper halves; the lower halves hold leftovers. A NaN stays one. */
ATTN_INLINE void split(dwords *part, vec x)
{
    part[0] = d_rounded_number(x);
}

/* The rounding of a probability. A NaN may become a zero: l is NaN as well. */
ATTN_INLINE void split_probability(dwords *part, vec x)
{
    part[0] = d_rounded(x);
}

#ifdef v_pair_bf16
/* Stores results of 32 columns, which lie as split_columns() has them. */
ATTN_INLINE void store_results(element *to, vec low, vec high)
{
    v_store((float *)(void *)to, v_pair_bf16(low, high));
}
#endif

/* Columns c .. c+31 of a row of n side by side, in f32, even ones first; zero beyond n. */
ATTN_INLINE void load_floats(vec *x, const void *row, int64_t c, int64_t n)
{
    const dwords pairs = d_load_some((const uint16_t *)row + c, n - c);
    x[0] = d_floats(pairs), x[1] = d_odd_floats(pairs);
}
