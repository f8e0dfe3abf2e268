/*
 * operands.h: operands of products of codes that tables share: runs of columns, scales, pairs of
 * columns of Q, and probabilities times scales.
 */
enum { RUN = 128 }; /* most columns whose products are summed before their scale */

static int64_t pad32(int64_t d)
{
    return (d + 31) / 32 * 32;
}

/* Columns of the run from column c on. */
ATTN_INLINE int64_t run_columns(int64_t c, int64_t group)
{
    const int64_t left = group - c % group;
    return left < RUN ? left : RUN;
}

/* Reads 16 scales side by side. */
ATTN_INLINE vec load_scales(const attn_row_codes *codes, int64_t at)
{
    return codes->dtype == ATTN_F16 ? v_load_f16((const uint16_t *)codes->scale + at)
                                    : v_load((const float *)codes->scale + at);
}

/* Columns c .. c+31 of a row of Q in pairs, times a factor; 0 for NULL. */
ATTN_INLINE dwords q_pairs(const uint16_t *row, int64_t stride, int64_t c, int64_t d, vec factor)
{
    uint16_t column[32] = {0};
    for (int64_t i = c; row && stride != 1 && i < c + 32 && i < d; i++) {
        column[i - c] = row[i * stride];
    }
    const dwords x = row && stride == 1 ? d_load_some(row + c, d - c) : d_load(column);
    return d_pairs(v_mul(d_floats(x), factor), v_mul(d_odd_floats(x), factor));
}

/* Packs 32 columns from c on of 16 rows, lanes `lane` .. of QT; their pairs are left in x. */
ATTN_INLINE void pack_pairs(void *qt, dwords *x, const void *const *row, int lane, int64_t stride,
                            int64_t c, int64_t d, double factor)
{
    for (int i = 0; i < VL; i++) {
        x[i] = q_pairs(row[i], stride, c, d, v_set1((float)factor));
    }
    transpose16((uint32_t *)qt + c / 2 * STRIP + lane, STRIP, x);
}

/* W of n keys, the scales of which are `step` apart, and `width` vectors of lanes. A NaN stays one:
 * results tell by it that they must be done again. */
ATTN_INLINE void scale_weights(uint16_t *w, const float *p, const float *scale, int64_t step,
                               int64_t n, const int width)
{
    for (int64_t key = 0; key < n; key += 2, w += 2 * STRIP, p += 2 * STRIP) {
        ATTN_UNROLL for (int i = 0; i < width; i++)
        {
            const vec a = v_mul(v_load(p + i * VL), v_set1(scale[key * step]));
            dwords odd = d_zero();
            if (key + 1 < n) {
                odd = d_rounded_number(
                    v_mul(v_load(p + STRIP + i * VL), v_set1(scale[(key + 1) * step])));
            }
            d_store(w + i * 2 * VL, d_upper_halves(d_rounded_number(a), odd));
        }
    }
}
