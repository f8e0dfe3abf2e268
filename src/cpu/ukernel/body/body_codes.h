/*
 * body_codes.h: the part of body.h that reads quantised rows (core/codes.h).
 */

#if defined v_load_i8 && REAL_BITS == 32
/* VL codes as numbers, from column c on. */
ATTN_INLINE vec FN(load_codes)(const char *data, int64_t c, const int32_t dtype)
{
    return dtype == ATTN_I8     ? v_load_i8(data + c)
           : dtype == ATTN_I4X2 ? v_load_i4(data + c / 2)
           : dtype == ATTN_E5M2 ? v_load_e5m2(data + c)
                                : v_load_e4m3(data + c);
}

/* Values of codes of one group, columns first .. end-1 as far as whole vectors go; returns the
 * column behind them. */
ATTN_INLINE int64_t FN(decode_group)(real *dst, const char *data, int64_t first, int64_t end,
                                     vec scale, const real *shift, const int32_t dtype)
{
    int64_t c = first;
    for (; shift && c + VL <= end; c += VL)
        v_store(dst + c, v_fma(scale, FN(load_codes)(data, c, dtype), v_set1(*shift)));
    for (; c + VL <= end; c += VL)
        v_store(dst + c, v_mul(scale, FN(load_codes)(data, c, dtype)));
    return c;
}
#endif

/* dst[0 .. n-1] = row `row` of codes. */
static void FN(decode)(real *dst, const attn_rows *src, int64_t row, int64_t n)
{
    const char *data = (const char *)src->data + row * src->row_stride;
    const attn_row_codes *codes = &src->codes;
    for (int64_t c = 0, group = 0; c < n; group++) {
        const int64_t end = c + codes->group < n ? c + codes->group : n;
#if defined v_load_i8 && REAL_BITS == 32
        const real shift = codes->shift ? attn_row_shift(codes, row, group) : 0;
        const real *at = codes->shift ? &shift : NULL;
        const vec scale = v_set1(attn_row_scale(codes, row, group));
        switch (src->col_stride == 1 && c % 2 == 0 ? src->dtype : 0) {
        case ATTN_I8:
            c = FN(decode_group)(dst, data, c, end, scale, at, ATTN_I8);
            break;
        case ATTN_I4X2:
            c = FN(decode_group)(dst, data, c, end, scale, at, ATTN_I4X2);
            break;
        case ATTN_E4M3:
            c = FN(decode_group)(dst, data, c, end, scale, at, ATTN_E4M3);
            break;
        case ATTN_E5M2:
            c = FN(decode_group)(dst, data, c, end, scale, at, ATTN_E5M2);
        }
#endif
        for (; c < end; c++) {
            dst[c] = (real)attn_row_value(data, src->col_stride, src->dtype, codes, row, c);
        }
    }
}
