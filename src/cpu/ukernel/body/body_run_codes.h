/*
 * body_run_codes.h: rows of quantised K and V as values for body_run_few.h. Values are those of a
 * panel.
 */
enum { FN(RUN_KEYS) = 2 * VL }; /* keys whose scores are computed at a time */
#if defined v_join_quads && defined v_column_i8 && REAL_BITS == 32
#define RUN_CODES /* rows of codes are taken: cases of a switch */
#define RUN_CODE_CASES(call, ...)                         \
    case ATTN_I8: call(__VA_ARGS__, ATTN_I8); return;     \
    case ATTN_I4X2: call(__VA_ARGS__, ATTN_I4X2); return; \
    case ATTN_E4M3: call(__VA_ARGS__, ATTN_E4M3); return; \
    case ATTN_E5M2: call(__VA_ARGS__, ATTN_E5M2); return;
#else
#define RUN_CODE_CASES(call, ...)
#endif

/* Scales of RUN_KEYS keys, and shifts, for a group of columns of K. */
typedef struct FN(run_factors) {
    real scale[FN(RUN_KEYS)], shift[FN(RUN_KEYS)];
} FN(run_factors);

/* Those of the n keys from `scale` and `shift` on, [key][group], in to[group]. The last one stands
 * for keys beyond. */
ATTN_INLINE void FN(run_factors_of)(FN(run_factors) * to, const float *scale, const float *shift,
                                    int64_t groups, int64_t n)
{
    if (groups == 1 && n >= FN(RUN_KEYS)) {
        ATTN_UNROLL for (int i = 0; i < FN(RUN_KEYS); i++) to->scale[i] = (real)scale[i];
        ATTN_UNROLL for (int i = 0; i < FN(RUN_KEYS); i++) to->shift[i] = (real)shift[i];
        return;
    }
    for (int i = 0; i < FN(RUN_KEYS); i++) {
        const int64_t from = (i < n ? i : n - 1) * groups;
        for (int64_t group = 0; group < groups; group++) {
            to[group].scale[i] = (real)scale[from + group];
            to[group].shift[i] = (real)shift[from + group];
        }
    }
}

#ifdef RUN_CODES
/* x[column][row] = values of `columns` columns from c on of VL rows of codes, one by one. */
static ATTN_NOINLINE void FN(run_each_code)(real (*x)[FN(RUN_KEYS)], const char *const *at,
                                            int64_t c, int columns, const real *scale,
                                            const real *shift, int32_t dtype)
{
    const int64_t each = attn_code_columns(dtype);
    for (int i = 0; i < columns; i++) {
        for (int row = 0; row < VL; row++) {
            const char *code = at[row] + (c + i) / each;
            x[i][row] = attn_code_value(attn_code_at(code, dtype, (c + i) % each), scale[row],
                                        shift + row);
        }
    }
}

/* x[column][row] = values of a chunk of columns of VL rows of codes. */
ATTN_INLINE void FN(run_codes_of)(real (*x)[FN(RUN_KEYS)], const char *const *at, int64_t c,
                                  const real *scale, const real *shift, const int32_t dtype)
{
    const int each = dtype == ATTN_I4X2 ? 8 : 4; /* columns of a dword */
    ATTN_UNROLL for (int i = 0; i < ATTN_DOT_CHUNK; i += 4 * each) {
        const int64_t byte = (c + i) / each * 4;
        vec y[4];
        ATTN_UNROLL for (int j = 0; j < 4; j++) y[j] = v_join_quads(at + j, byte);
        if (FN(any_special)(y, 4, dtype)) {
            FN(run_each_code)(x + i, at, c + i, 4 * each, scale, shift, dtype);
            continue;
        }
        FN(shuffle)(y, 4);
        ATTN_UNROLL for (int j = 0; j < 4 * each; j++) v_store(
            x[i + j], v_fma(v_load(scale), FN(column)(y, j, dtype), v_load(shift)));
    }
}

/* The same of RUN_KEYS rows, as a function of its own: the products leave it too few registers. */
static ATTN_NOINLINE void FN(run_codes)(real (*x)[FN(RUN_KEYS)], const char *const *at, int64_t c,
                                        const FN(run_factors) * by, int32_t dtype)
{
    for (int side = 0; side < FN(RUN_KEYS); side += VL) {
        real (*to)[FN(RUN_KEYS)] = (real (*)[FN(RUN_KEYS)])(x[0] + side);
        OF_CODES(dtype, FN(run_codes_of), to, at + side, c, by->scale + side, by->shift + side);
    }
}
#endif

#ifndef v_in_pairs
#define v_in_pairs(dtype) false
#define v_load_pairs(x, p, dtype) ((void)0)
#define v_to_pairs(x) ((void)0)
#define v_from_pairs(x) ((void)0)
#endif

/* Loads `width` vectors of columns as numbers, codes or not; two of them in pairs, if their type
 * and number allow it. */
ATTN_INLINE void FN(run_load)(vec *x, const char *at, const int32_t dtype, const int width)
{
    if (v_in_pairs(dtype) && width % 2 == 0) {
        ATTN_UNROLL for (int i = 0; i < width; i += 2)
            v_load_pairs(x + i, at + FN(bytes_of)(i * VL, dtype), dtype);
        return;
    }
#ifdef RUN_CODES
#ifdef v_load_two_i4
    if (width % 2 == 0 && dtype == ATTN_I4X2) {
        ATTN_UNROLL for (int i = 0; i < width; i += 2) v_load_two_i4(x + i, at + i * VL / 2);
        return;
    }
#endif
    if (width % 2 == 0 && dtype == ATTN_E4M3) {
        ATTN_UNROLL for (int i = 0; i < width; i += 2) v_load_two_e4m3(x + i, at + i * VL);
        return;
    }
#endif
    ATTN_UNROLL for (int i = 0; i < width; i++) x[i] = FN(load_row)(at, i * VL, dtype);
}
