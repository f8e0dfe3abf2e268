/*
 * body_store.h: OT / l as rows of O. Included by body_rows.h, with its parameters. Quotients are
 * taken while queries lie along the lanes, then transposed; elements of 16 bits are narrowed before
 * that, where the instruction set has v_pair_*.
 */

/* What VL lanes are divided by: 1 for lanes that are not in use, and without any divisor. */
typedef struct FN(divisors) {
    real by[VL];
    vec all, inverse;
    bool any;
} FN(divisors);

ATTN_INLINE void FN(load_divisors)(FN(divisors) *d, const real *divisor, int lanes)
{
    for (int i = 0; i < VL; i++) {
        d->by[i] = divisor && i < lanes ? divisor[i] : 1;
    }
    d->all = v_load(d->by);
    d->inverse = v_div(v_set1(1), d->all);
    d->any = divisor != NULL;
}

/* x / by, or 0 where that is 0; others are at least about 1. */
ATTN_INLINE vec FN(divide)(vec x, vec by)
{
    return v_zero_lt(v_abs(by), v_set1(REAL_MIN), v_div(x, by));
}

#ifndef v_quotient
#define v_quotient(a, b, inverse) FN(divide)(a, b)
#define v_can_quotient(a, step, n, b) false
#endif

/* Columns c .. c+VL-1, as far as below n, of `lanes` lanes: OT / divisor as rows. `quick`:
 * v_quotient will do, else rows are divided, of which there may be few. + 0: a zero is positive
 * however many empty tiles were skipped. */
ATTN_INLINE void FN(divide_to_rows)(real *const *row, const real *ot, int64_t c, int64_t n,
                                    const FN(divisors) * d, int lanes, const bool quick)
{
    vec x[VL];
    ATTN_UNROLL for (int i = 0; i < VL; i++) {
        x[i] = c + i < n ? v_load(ot + (c + i) * STRIP) : v_set1(0);
        x[i] = quick ? v_quotient(x[i], d->all, d->inverse) : x[i];
    }
    FN(transpose)(x);
    ATTN_UNROLL for (int i = 0; i < VL; i++) {
        if (i < lanes) {
            const vec y = quick || !d->any ? x[i] : FN(divide)(x[i], v_set1(d->by[i]));
            v_store(row[i] + c, v_add(y, v_set1(0)));
        }
    }
}

/* The first columns of `lanes` lanes, OT / divisor as rows of a type of 16 bits: narrowed in pairs
 * before they are transposed. How many, a multiple of 2 VL. */
ATTN_INLINE int64_t FN(divide_to_halves)(void *const *row, const real *ot, int64_t dv,
                                         const FN(divisors) * d, int lanes, const bool bf16)
{
    int64_t c = 0;
#ifdef v_pair_bf16
    for (; c + 2 * VL <= dv; c += 2 * VL, ot += 2 * VL * STRIP) {
        vec x[VL];
        ATTN_UNROLL for (int i = 0; i < VL; i++) {
            const vec a = v_quotient(v_load(ot + 2 * i * STRIP), d->all, d->inverse);
            const vec b = v_quotient(v_load(ot + (2 * i + 1) * STRIP), d->all, d->inverse);
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
ATTN_INLINE void FN(store_columns)(void *const *row, int64_t stride, int32_t dtype, const real *ot,
                                   int64_t c, int64_t dv, const FN(divisors) * d, int lanes,
                                   const bool quick)
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

static void FN(store)(void *const *row, int64_t stride, int32_t dtype, const void *ot_, int64_t dv,
                      const void *divisor, int lanes)
{
    for (int lane = 0; lane < lanes; lane += VL, row += VL) {
        const real *ot = (const real *)ot_ + lane;
        const int left = lanes - lane;
        FN(divisors) d;
        FN(load_divisors)(&d, divisor ? (const real *)divisor + lane : NULL, left);
        if (left > VL / 4 && v_can_quotient(ot, STRIP, dv, d.all)) {
            const int64_t c =
                stride != 1          ? 0
                : dtype == ATTN_BF16 ? FN(divide_to_halves)(row, ot, dv, &d, left, true)
                : dtype == ATTN_F16  ? FN(divide_to_halves)(row, ot, dv, &d, left, false)
                                     : 0;
            FN(store_columns)(row, stride, dtype, ot, c, dv, &d, left, true);
        } else {
            FN(store_columns)(row, stride, dtype, ot, 0, dv, &d, left, false);
        }
    }
}
