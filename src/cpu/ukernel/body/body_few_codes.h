/*
 * body_few_codes.h: the part of body.h that takes scores from rows of quantised keys where they
 * are, for few lanes: dwords of VL keys are transposed, so that each holds columns of one key, and
 * a column of all keys is a vector. The values and the order of each sum are those of a panel.
 */
#if defined v_column_i8 && REAL_BITS == 32
enum { CODE_GROUPS = 16 }; /* most groups of a row */

/* Loads the scales of keys key .. key+VL-1. Lanes beyond n - 1 get the scale of that key. */
static void FN(code_scales)(real (*scale)[VL], const attn_rows *k, int64_t key, int64_t n,
                            int64_t groups)
{
    const attn_row_codes *codes = &k->codes;
    for (int i = 0; i < VL; i++) {
        const int64_t at = (key + i < n ? key + i : n - 1) * codes->scale_row;
        for (int64_t group = 0; group < groups; group++) {
            const int64_t place = at + group * codes->scale_group;
            scale[group][i] = !codes->scale ? 1
                              : codes->dtype == ATTN_F16
                                  ? v_load1_f16((const uint16_t *)codes->scale + place)
                                  : attn_code_factor(codes->scale, place, codes->dtype);
        }
    }
}

/* Adds dwords first .. first + 32 / each - 1 of the keys, 32 columns, to the sums. */
ATTN_INLINE void FN(code_chunk)(vec *sum, const vec *x, vec scale, const real *qt, bool more,
                                const int each, const int rows)
{
    vec chunk[8];
    ATTN_UNROLL for (int r = 0; r < rows; r++) chunk[r] = v_set1(0);
    ATTN_UNROLL for (int i = 0; i < ATTN_DOT_CHUNK; i++) {
        const vec dword = x[i / each];
        const vec code = each == 8 ? v_column_i4(dword, i % 8) : v_column_i8(dword, i % 4);
        const vec y = v_mul(scale, code);
        ATTN_UNROLL for (int r = 0; r < rows; r++) chunk[r] =
            v_fma(y, v_set1(qt[i * STRIP + r]), chunk[r]);
    }
    ATTN_UNROLL for (int r = 0; r < rows; r++) sum[r] = more ? v_add(sum[r], chunk[r]) : chunk[r];
}

/* Computes scores of keys key .. key+VL-1 below n. Dwords hold `each` columns. */
ATTN_INLINE void FN(code_keys)(real *s, const attn_rows *k, int64_t key, int64_t n, const real *qt,
                               int64_t d, const int each, const int rows)
{
    const int64_t group = k->codes.group;
    real scale[CODE_GROUPS][VL], scores[8][VL];
    vec sum[8];
    ATTN_UNROLL for (int r = 0; r < rows; r++) sum[r] = v_set1(0);
    FN(code_scales)(scale, k, key, n, d / group);
    for (int64_t c = 0; c < d; c += each * VL) {
        vec x[VL];
        ATTN_UNROLL for (int i = 0; i < VL; i++) {
            const int64_t row = key + i < n ? key + i : n - 1;
            const char *at = (const char *)k->data + row * k->row_stride + c / each * 4;
            x[i] = v_load((const real *)(const void *)at);
        }
        FN(transpose)(x);
        ATTN_UNROLL for (int i = 0; i < VL * each; i += ATTN_DOT_CHUNK) {
            attn_fetch_soon(k->soon, VL * ATTN_DOT_CHUNK);
            FN(code_chunk)(sum, x + i / each, v_load(scale[(c + i) / group]), qt + (c + i) * STRIP,
                           c + i > 0, each, rows);
        }
    }
    ATTN_UNROLL for (int r = 0; r < rows; r++) v_store(scores[r], sum[r]);
    for (int i = 0; i < VL && key + i < n; i++, s += STRIP) {
        v_store(s, v_set1(0)); /* lanes beyond `rows`, which the softmax takes too */
        ATTN_UNROLL for (int r = 0; r < rows; r++) s[r] = scores[r][i];
    }
}

static bool FN(qk_codes)(void *s, const attn_rows *k, const void *qt, int64_t d, int64_t n,
                         int lanes)
{
    const int each = k->dtype == ATTN_I8 ? 4 : 8;
    if ((k->dtype != ATTN_I8 && k->dtype != ATTN_I4X2) || k->col_stride != 1 || k->codes.shift ||
        lanes > FN(FEW) || d == 0 || d % (each * VL) != 0 || k->codes.group % ATTN_DOT_CHUNK != 0 ||
        d / k->codes.group > CODE_GROUPS) {
        return false;
    }
    for (int64_t key = 0; key < n; key += VL) {
        real *to = (real *)s + key * STRIP;
        if (each == 4 && lanes <= 4) {
            FN(code_keys)(to, k, key, n, qt, d, 4, 4);
        } else if (each == 4) {
            FN(code_keys)(to, k, key, n, qt, d, 4, 8);
        } else if (lanes <= 4) {
            FN(code_keys)(to, k, key, n, qt, d, 8, 4);
        } else {
            FN(code_keys)(to, k, key, n, qt, d, 8, 8);
        }
    }
    return true;
}
#define QK_CODES FN(qk_codes)
#else
#define QK_CODES NULL
#endif
