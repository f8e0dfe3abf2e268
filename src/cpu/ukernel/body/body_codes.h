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

/* One element of type f32, f16 or bf16 in all lanes. */
ATTN_INLINE vec FN(factor)(const void *data, int64_t at, int32_t dtype)
{
    return v_set1(dtype == ATTN_F16 ? v_load1_f16((const uint16_t *)data + at)
                                    : attn_code_factor(data, at, dtype));
}

/* Values of columns first .. end-1, one group, as far as whole vectors go; returns the next
 * column. */
ATTN_INLINE int64_t FN(decode_group)(real *dst, const char *data, int64_t first, int64_t end,
                                     vec scale, const vec *shift, const int32_t dtype)
{
    int64_t c = first;
    for (; shift && c + VL <= end; c += VL)
        v_store(dst + c, v_fma(scale, FN(load_codes)(data, c, dtype), *shift));
    for (; c + VL <= end; c += VL)
        v_store(dst + c, v_mul(scale, FN(load_codes)(data, c, dtype)));
    return c;
}

/* Values of a row of codes side by side, group by group. */
ATTN_INLINE void FN(decode_row)(real *dst, const char *data, const attn_row_codes *codes,
                                int64_t row, int64_t n, const int32_t dtype)
{
    const int64_t scales = row * codes->scale_row, shifts = row * codes->shift_row;
    for (int64_t c = 0, group = 0; c < n; group++) {
        const int64_t end = c + codes->group < n ? c + codes->group : n;
        vec scale = v_set1(1), shift = v_set1(0);
        if (codes->scale) {
            scale = FN(factor)(codes->scale, scales + group * codes->scale_group, codes->dtype);
        }
        if (codes->shift) {
            shift = FN(factor)(codes->shift, shifts + group * codes->shift_group, codes->dtype);
        }
        if (c % 2 == 0) {
            c = FN(decode_group)(dst, data, c, end, scale, codes->shift ? &shift : NULL, dtype);
        }
        for (; c < end; c++) {
            dst[c] = (real)attn_row_value(data, 1, dtype, codes, row, c);
        }
    }
}
#endif

/* dst[0 .. n-1] = row `row` of codes. */
static void FN(decode)(real *dst, const attn_rows *src, int64_t row, int64_t n)
{
    const char *data = (const char *)src->data + row * src->row_stride;
#if defined v_load_i8 && REAL_BITS == 32
    switch (src->col_stride == 1 ? src->dtype : 0) {
    case ATTN_I8:
        FN(decode_row)(dst, data, &src->codes, row, n, ATTN_I8);
        return;
    case ATTN_I4X2:
        FN(decode_row)(dst, data, &src->codes, row, n, ATTN_I4X2);
        return;
    case ATTN_E4M3:
        FN(decode_row)(dst, data, &src->codes, row, n, ATTN_E4M3);
        return;
    case ATTN_E5M2:
        FN(decode_row)(dst, data, &src->codes, row, n, ATTN_E5M2);
        return;
    }
#endif
    for (int64_t c = 0; c < n; c++) {
        dst[c] = (real)attn_row_value(data, src->col_stride, src->dtype, &src->codes, row, c);
    }
}
