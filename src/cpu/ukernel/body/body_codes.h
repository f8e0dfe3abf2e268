/*
 * body_codes.h: the part of body.h that packs rows of K and V, quantised ones (core/codes.h) among
 * them.
 */

#if defined v_load_i8 && REAL_BITS == 32
/* Reads VL codes from column c on as numbers. */
ATTN_INLINE vec FN(load_codes)(const char *data, int64_t c, const int32_t dtype)
{
    return dtype == ATTN_I8     ? v_load_i8(data + c)
           : dtype == ATTN_I4X2 ? v_load_i4(data + c / 2)
           : dtype == ATTN_E5M2 ? v_load_e5m2(data + c)
                                : v_load_e4m3(data + c);
}

/* Reads an element of type f32, f16 or bf16 into all lanes. */
ATTN_INLINE vec FN(factor)(const void *data, int64_t at, int32_t dtype)
{
    return v_set1(dtype == ATTN_F16 ? v_load1_f16((const uint16_t *)data + at)
                                    : attn_code_factor(data, at, dtype));
}

/* Computes the values of columns first .. end-1 of one group in whole vectors. Returns the next
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

/* Computes the values of a row of codes side by side, group by group. */
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

/* Writes row `row` of codes to dst[0 .. n-1] as values. */
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

static void FN(pack_rows)(real *dst, int64_t cols_pad, const attn_rows *src, int64_t rows,
                          int64_t cols)
{
    const int64_t step = src->row_stride * attn_element_size(src->dtype);
    const bool codes = attn_is_code(src->dtype);
    /* contiguous rows: one long row */
    const bool long_row = src->col_stride == 1 && src->row_stride == cols && cols_pad == cols;
    if (!codes && !src->soon && long_row) {
        cols *= rows, cols_pad = cols, rows = 1;
    }
    for (int64_t row = 0; row < rows; row++, dst += cols_pad) {
        attn_fetch_soon(src->soon, cols);
        if (codes) {
            FN(decode)(dst, src, row, cols);
        } else {
            FN(widen)(dst, (const char *)src->data + row * step, src->col_stride, src->dtype, cols);
        }
        for (int64_t c = cols; c < cols_pad; c++) {
            dst[c] = 0;
        }
    }
}

static void FN(pack_k)(void *k, int64_t at, const attn_rows *src, int64_t n, int64_t d)
{
    FN(pack_rows)((real *)k + at * d, d, src, n, d);
}

static void FN(pack_v)(void *v, int64_t at, const attn_rows *src, int64_t n, int64_t dv,
                       int64_t dv_pad)
{
    FN(pack_rows)((real *)v + at * dv_pad, dv_pad, src, n, dv);
}
