/*
 * body_store.h: OT / l as rows of O. Included by body_rows.h, with its parameters. Quotients are taken while queries lie
 * along the lanes, then transposed; elements of 16 bits are narrowed before that, where the instruction set has
 * v_pair_*. (See docs/cpu.md for what each step cost.)
 */

/* What VL lanes are divided by. */
typedef struct FN(divisors) {
    vec by, inverse;
} FN(divisors);

/* Those of `lanes` lanes; 1 for lanes beyond, and without any (NULL). */
ATTN_INLINE FN(divisors) FN(load_divisors)(const real *divisor, int lanes)
{
    real by[VL];
    for (int i = 0; i < VL; i++) {
        by[i] = divisor && i < lanes ? divisor[i] : 1;
    }
    return (FN(divisors)){v_load(by), v_div(v_set1(1), v_load(by))};
}

/* x / divisor, or 0 where that is 0; others are at least about 1. + 0: a zero is positive however many empty tiles were
 * skipped. `quick`: as v_can_quotient says. */
ATTN_INLINE vec FN(divide)(vec x, const FN(divisors) *d, const bool quick)
{
#ifdef v_quotient
    if (quick) {
        return v_quotient(x, d->by, d->inverse);
    }
#endif
    (void)quick;
    return v_add(v_zero_lt(v_abs(d->by), v_set1(REAL_MIN), v_div(x, d->by)), v_set1(0));
}

/* Columns c .. c+VL-1, as far as below n, of `lanes` lanes: OT / divisor as rows. */
ATTN_INLINE void FN(divide_to_rows)(real *const *row, const real *ot, int64_t c, int64_t n, const FN(divisors) *d,
                                    int lanes, const bool quick)
{
    vec x[VL];
    ATTN_UNROLL for (int i = 0; i < VL; i++) {
        x[i] = c + i < n ? FN(divide)(v_load(ot + (c + i) * STRIP), d, quick) : v_set1(0);
    }
    FN(transpose)(x);
    ATTN_UNROLL for (int i = 0; i < VL; i++) {
        if (i < lanes) {
            v_store(row[i] + c, x[i]);
        }
    }
}

/* The first columns of `lanes` lanes, OT / divisor as rows of a type of 16 bits: narrowed in pairs before they are
 * transposed. How many, a multiple of 2 VL. */
ATTN_INLINE int64_t FN(divide_to_halves)(void *const *row, const real *ot, int64_t dv, const FN(divisors) *d, int lanes,
                                         const bool bf16)
{
    int64_t c = 0;
#ifdef v_pair_bf16
    for (; c + 2 * VL <= dv; c += 2 * VL, ot += 2 * VL * STRIP) {
        vec x[VL];
        ATTN_UNROLL for (int i = 0; i < VL; i++) {
            const vec a = FN(divide)(v_load(ot + 2 * i * STRIP), d, true);
            const vec b = FN(divide)(v_load(ot + (2 * i + 1) * STRIP), d, true);
            x[i] = bf16 ? v_pair_bf16(a, b) : v_pair_f16(a, b);
        }
        FN(transpose)(x);
        ATTN_UNROLL for (int i = 0; i < VL; i++) {
            if (i < lanes) {
                v_store((uint16_t *)row[i] + c, x[i]);
            }
        }
    }
#else
    (void)row, (void)ot, (void)dv, (void)d, (void)lanes, (void)bf16;
#endif
    return c;
}

/* Columns from c on of up to VL lanes. */
ATTN_INLINE void FN(store_columns)(void *const *row, int64_t stride, int32_t dtype, const real *ot, int64_t c, int64_t dv,
                                   const FN(divisors) *d, int lanes, const bool quick)
{
    real tile[VL][FN(CHUNK)], *to[VL];
    const int64_t step = stride * attn_element_size(dtype);
    for (int64_t n; c < dv; c += n) {
        n = dv - c < FN(CHUNK) ? dv - c : FN(CHUNK);
        const bool in_place = FN(in_place)(stride, dtype, n);
        for (int i = 0; i < VL; i++) {
            to[i] = in_place && i < lanes ? (real *)row[i] + c : tile[i];
        }
        for (int64_t i = 0; i < n; i += VL) {
            FN(divide_to_rows)(to, ot + c * STRIP, i, n, d, lanes, quick);
        }
        for (int i = 0; !in_place && i < VL && i < lanes; i++) {
            FN(narrow)((char *)row[i] + c * step, stride, dtype, tile[i], n);
        }
    }
}

static void FN(store)(void *const *row, int64_t stride, int32_t dtype, const void *ot_, int64_t dv, const void *divisor,
                      int lanes)
{
    for (int lane = 0; lane < lanes; lane += VL) {
        const real *ot = (const real *)ot_ + lane;
        const FN(divisors) d = FN(load_divisors)(divisor ? (const real *)divisor + lane : NULL, lanes - lane);
#ifdef v_quotient
        if (v_can_quotient(ot, STRIP, dv, d.by)) {
            const int64_t c = stride != 1         ? 0
                              : dtype == ATTN_BF16 ? FN(divide_to_halves)(row + lane, ot, dv, &d, lanes - lane, true)
                              : dtype == ATTN_F16  ? FN(divide_to_halves)(row + lane, ot, dv, &d, lanes - lane, false)
                                                   : 0;
            FN(store_columns)(row + lane, stride, dtype, ot, c, dv, &d, lanes - lane, true);
            continue;
        }
#endif
        FN(store_columns)(row + lane, stride, dtype, ot, 0, dv, &d, lanes - lane, false);
    }
}
