/*
 * body_store.h: OT / l as rows of O, and as a part of a sum of segments. Included by body_rows.h,
 * with its parameters. Quotients are taken while queries lie along the lanes, then transposed;
 * elements of 16 bits are narrowed before that, where the instruction set has v_pair_*.
 */

/* Divisors of VL lanes: 1 for lanes that are not in use, and without any divisor. */
typedef struct FN(divisors) {
    real by[VL];
    vec all, inverse;
    bool any;
} FN(divisors);

ATTN_INLINE void FN(load_divisors)(FN(divisors) * d, const real *divisor, int lanes)
{
    if (divisor && lanes >= VL) { /* a vector would wait for elements that are stored one by one */
        d->all = v_load(divisor);
        v_store(d->by, d->all);
    } else {
        for (int i = 0; i < VL; i++) {
            d->by[i] = divisor && i < lanes ? divisor[i] : 1;
        }
        d->all = v_load(d->by);
    }
    d->inverse = v_div(v_set1(1), d->all);
    d->any = divisor != NULL;
}

/* Divisors of few lanes, which rows are divided by one by one. */
ATTN_INLINE void FN(few_divisors)(FN(divisors) * d, const real *divisor, int lanes)
{
    for (int i = 0; i < lanes; i++) d->by[i] = divisor ? divisor[i] : 1;
    d->any = divisor != NULL;
}

/* x / by, or 0 where that is 0; others are at least about 1. */
ATTN_INLINE vec FN(divide)(vec x, vec by)
{
    return v_zero_lt(v_abs(by), v_set1(REAL_MIN), v_div(x, by));
}

#ifndef v_quotient
#define v_quotient(a, b, inverse) FN(divide)(a, b)
#define v_can_quotient(a, step, n, b, lanes) false
#define v_can_quotients(a, n) false
#endif

/* 1 / divisor. True if v_quotient does for all of them. */
ATTN_INLINE bool FN(inverses)(real *inverse, const real *divisor, int lanes)
{
    bool near = true;
    for (int lane = 0; lane < lanes; lane += VL) {
        const vec x = v_load(divisor + lane);
        v_store(inverse + lane, v_div(v_set1(1), x));
        near = near && v_can_quotient(divisor, 0, 0, x, lanes - lane);
    }
    return near;
}

/* Stores columns c .. c+VL-1 of at most four lanes: OT / divisor as rows. */
ATTN_INLINE void FN(divide_quads)(real *const *row, const real *ot, int64_t c,
                                  const FN(divisors) * d, int lanes)
{
    vec x[4];
    FN(from_quads)(x, (const real (*)[4])(ot + c * STRIP), STRIP / 4);
    ATTN_UNROLL for (int i = 0; i < 4; i++)
    {
        if (i < lanes) {
            const vec y = d->any ? FN(divide)(x[i], v_set1(d->by[i])) : x[i];
            v_store(row[i] + c, v_add(y, v_set1(0)));
        }
    }
}

/* Stores columns c .. c+VL-1, as far as below n, of `lanes` lanes: OT / divisor as rows. `quick`:
 * v_quotient will do; else each row is divided. + 0: a zero is positive however many empty tiles
 * were skipped. */
ATTN_INLINE void FN(divide_to_rows)(real *const *row, const real *ot, int64_t c, int64_t n,
                                    const FN(divisors) * d, int lanes, const bool quick)
{
    vec x[VL];
    if (FN(FEW) > 0 && lanes <= 4 && c + VL <= n) {
        FN(divide_quads)(row, ot, c, d, lanes);
        return;
    }
    ATTN_UNROLL for (int i = 0; i < VL; i++)
    {
        x[i] = c + i < n ? v_load(ot + (c + i) * STRIP) : v_set1(0);
        x[i] = quick ? v_quotient(x[i], d->all, d->inverse) : x[i];
    }
    FN(transpose)(x);
    ATTN_UNROLL for (int i = 0; i < VL; i++)
    {
        if (i < lanes) {
            const vec y = quick || !d->any ? x[i] : FN(divide)(x[i], v_set1(d->by[i]));
            v_store(row[i] + c, v_add(y, v_set1(0)));
        }
    }
}

/* Stores the first columns of `lanes` lanes, OT / divisor as rows of a 16-bit type, narrowed in
 * pairs before they are transposed. Returns their number, a multiple of 2 VL. */
ATTN_INLINE int64_t FN(divide_to_halves)(void *const *row, const real *ot, int64_t dv,
                                         const FN(divisors) * d, int lanes, const bool bf16)
{
    int64_t c = 0;
#ifdef v_pair_bf16
    for (; c + 2 * VL <= dv; c += 2 * VL, ot += 2 * VL * STRIP) {
        vec x[VL];
        ATTN_UNROLL for (int i = 0; i < VL; i++)
        {
            const vec a = v_quotient(v_load(ot + 2 * i * STRIP), d->all, d->inverse);
            const vec b = v_quotient(v_load(ot + (2 * i + 1) * STRIP), d->all, d->inverse);
            x[i] = bf16 ? v_pair_bf16(a, b) : v_pair_f16(a, b);
        }
        FN(transpose)(x);
        ATTN_UNROLL for (int i = 0; i < VL; i++)
        {
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

/* Stores columns from c on of up to VL lanes. */
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
        const real *by = divisor ? (const real *)divisor + lane : NULL;
        FN(divisors) d;
        if (left <= VL / 4) {
            FN(few_divisors)(&d, by, left);
            FN(store_columns)(row, stride, dtype, ot, 0, dv, &d, left, false);
            continue;
        }
        FN(load_divisors)(&d, by, left);
        if (v_can_quotient(ot, STRIP, dv, d.all, left)) {
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

static void FN(logs)(double *lse, double *rest, const attn_running *state, double unit, int lanes)
{
    const real *m = state->m, *l = state->l;
    for (int lane = 0; lane < STRIP; lane++) {
        const double max = (double)m[lane] * unit, ln = attn_ln((double)l[lane]), sum = max + ln;
        const bool none = lane >= lanes || l[lane] == 0;
        lse[lane] = none ? -INFINITY : sum;
        rest[lane] = none ? 0 : attn_sum_rest(max, ln, sum);
    }
}

/* The factors of a part's columns, by VL lanes. */
typedef struct FN(join_factors) {
    FN(divisors) d[NV];
    vec a[NV], b[NV];
} FN(join_factors);

/* Joins the first `count` vectors of each row of lanes, row by row. The node was last used a
 * segment ago, so its lines are fetched ahead, in their order. */
ATTN_INLINE void FN(join_rows)(real *node, const real *ot, int64_t dv, const FN(join_factors) * f,
                               const int count, const bool add, const bool quick)
{
    enum { ROWS_AHEAD = 16 };
    for (int64_t c = 0; c < dv; c++, node += STRIP, ot += STRIP) {
        ATTN_UNROLL for (int v = 0; v < NV; v++)
        {
            if (v < count) {
                vec x = v_load(ot + v * VL);
                if (add) {
                    ATTN_PREFETCH(node + ROWS_AHEAD * STRIP + v * VL);
                }
                if (quick) {
                    x = v_quotient(x, f->d[v].all, f->d[v].inverse);
                } else if (f->d[v].any) {
                    x = FN(divide)(x, f->d[v].all);
                }
                v_store(node + v * VL,
                        add ? v_fma(x, f->b[v], v_mul(v_load(node + v * VL), f->a[v])) : x);
            }
        }
    }
}

/* a and b are not read unless `add`. */
ATTN_INLINE void FN(add_part)(const attn_part *node, const attn_part *part, int64_t dv, int lanes,
                              const real *a, const real *b, const bool add)
{
    const int count = (lanes + VL - 1) / VL;
    const real *ot = part->o, *by = part->divisor;
    bool quick = by != NULL;
    FN(join_factors) f;
    for (int v = 0; v < NV; v++) {
        FN(load_divisors)(&f.d[v], by ? by + v * VL : NULL, lanes - v * VL);
        quick = quick && (v >= count || v_can_quotient(ot + v * VL, STRIP, dv, f.d[v].all,
                                                       lanes - v * VL));
        f.a[v] = add ? v_load(a + v * VL) : v_set1(1);
        f.b[v] = add ? v_load(b + v * VL) : v_set1(1);
    }
    if (quick) {
        FN(join_rows)(node->o, ot, dv, &f, count, add, true);
    } else {
        FN(join_rows)(node->o, ot, dv, &f, count, add, false);
    }
}

static void FN(join)(const attn_part *node, const attn_part *part, int64_t dv, int lanes)
{
    real a[STRIP], b[STRIP];
    for (int lane = 0; lane < STRIP; lane++) {
        const attn_join join =
            attn_segment_join(node->lse[lane], node->rest[lane], part->lse[lane], part->rest[lane]);
        node->lse[lane] = join.lse, node->rest[lane] = join.rest;
        a[lane] = (real)join.a, b[lane] = (real)join.b;
    }
    FN(add_part)(node, part, dv, lanes, a, b, true);
}

static void FN(copy)(const attn_part *node, const attn_part *part, int64_t dv, int lanes)
{
    FN(add_part)(node, part, dv, lanes, NULL, NULL, false);
    memcpy(node->lse, part->lse, STRIP * sizeof(double));
    memcpy(node->rest, part->rest, STRIP * sizeof(double));
}
