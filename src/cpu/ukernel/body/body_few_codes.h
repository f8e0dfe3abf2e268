/*
 * body_few_codes.h: the part of body.h that takes scores from rows of quantised keys where they
 * are, for few lanes: dwords of VL keys are transposed, so that each holds columns of one key, and
 * a column of all keys is a vector. The values and the order of each sum are those of a panel.
 */
#if defined v_column_i8 && REAL_BITS == 32
#include "cpu/ukernel/codes/types.h"

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

/* Reads column i of 32 of dwords of codes. */
ATTN_INLINE vec FN(column)(const vec *x, int i, const int32_t dtype)
{
    return dtype == ATTN_I4X2   ? v_column_i4(x[i / 8], i % 8)
           : dtype == ATTN_I8   ? v_column_i8(x[i / 4], i % 4)
           : dtype == ATTN_E4M3 ? v_column_e4m3(x[i / 4], i % 4)
                                : v_column_e5m2(x[i / 4], i % 4);
}

/* Adds 32 columns of the keys, of which x holds dwords, to the sums. */
ATTN_INLINE void FN(code_chunk)(vec *sum, const vec *x, vec scale, const real *qt, bool more,
                                const int32_t dtype, const int rows)
{
    vec chunk[8];
    ATTN_UNROLL for (int r = 0; r < rows; r++) chunk[r] = v_set1(0);
    ATTN_UNROLL for (int i = 0; i < ATTN_DOT_CHUNK; i++) {
        const vec y = v_mul(scale, FN(column)(x, i, dtype));
        ATTN_UNROLL for (int r = 0; r < rows; r++) chunk[r] =
            v_fma(y, v_set1(qt[i * STRIP + r]), chunk[r]);
    }
    ATTN_UNROLL for (int r = 0; r < rows; r++) sum[r] = more ? v_add(sum[r], chunk[r]) : chunk[r];
}

/* True if a code of n vectors of dwords is not finite. */
ATTN_INLINE bool FN(any_special)(const vec *x, const int n, const int32_t dtype)
{
    bool any = false;
    if (dtype == ATTN_E4M3 || dtype == ATTN_E5M2) {
        ATTN_UNROLL for (int i = 0; i < n; i++) any |=
            v_any_beyond(x[i], dtype == ATTN_E4M3 ? 0x7e : 0x7b);
    }
    return any;
}

/* Computes scores of keys key .. key+VL-1 below n; false where a code is not finite. */
ATTN_INLINE bool FN(code_keys)(real *s, const attn_rows *k, int64_t key, int64_t n, const real *qt,
                               int64_t d, const int32_t dtype, const int rows)
{
    const int each = dtype == ATTN_I4X2 ? 8 : 4; /* columns of a dword */
    const int64_t group = k->codes.group;
    real scale[ATTN_MAX_KEY_GROUPS][VL];
    vec sum[8];
    ATTN_UNROLL for (int r = 0; r < 8; r++) sum[r] = v_set1(0);
    FN(code_scales)(scale, k, key, n, d / group);
    for (int64_t c = 0; c < d; c += each * VL) {
        vec x[VL];
        ATTN_UNROLL for (int i = 0; i < VL; i++) {
            const int64_t row = key + i < n ? key + i : n - 1;
            const char *at = (const char *)k->data + row * k->row_stride + c / each * 4;
            x[i] = v_load((const real *)(const void *)at);
        }
        if (FN(any_special)(x, VL, dtype)) {
            return false;
        }
        FN(transpose)(x);
        ATTN_UNROLL for (int i = 0; i < VL * each; i += ATTN_DOT_CHUNK) {
            attn_fetch_soon(k->soon, VL * ATTN_DOT_CHUNK);
            FN(code_chunk)(sum, x + i / each, v_load(scale[(c + i) / group]), qt + (c + i) * STRIP,
                           c + i > 0, dtype, rows);
        }
    }
    FN(few_keys_end)(s, sum, n - key < VL ? (int)(n - key) : VL, rows);
    return true;
}

/* Computes scores of n keys. */
ATTN_INLINE bool FN(code_rows)(real *s, const attn_rows *k, const real *qt, int64_t d, int64_t n,
                               int lanes, const int32_t dtype)
{
    bool done = true;
    for (int64_t key = 0; key < n && done; key += VL, s += VL * STRIP) {
        done = lanes == 1   ? FN(code_keys)(s, k, key, n, qt, d, dtype, 1)
               : lanes <= 4 ? FN(code_keys)(s, k, key, n, qt, d, dtype, 4)
                            : FN(code_keys)(s, k, key, n, qt, d, dtype, 8);
    }
    return done;
}

static bool FN(qk_codes)(void *s, const attn_rows *k, const void *qt, int64_t d, int64_t n,
                         int lanes)
{
    const int each = k->dtype == ATTN_I4X2 ? 8 : 4;
    if (!attn_is_code(k->dtype) || k->col_stride != 1 || k->codes.shift || lanes > FN(FEW) ||
        d == 0 || d % (each * VL) != 0 || k->codes.group % ATTN_DOT_CHUNK != 0 ||
        d / k->codes.group > ATTN_MAX_KEY_GROUPS) {
        return false;
    }
    return OF_CODES(k->dtype, FN(code_rows), s, k, qt, d, n, lanes);
}
#define QK_CODES FN(qk_codes)
#else
#define QK_CODES NULL
#endif
