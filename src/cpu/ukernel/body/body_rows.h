/*
 * body_rows.h: the part of body.h that does not depend on the way of products: exp2 and tanh,
 * scores and masks, rows in and out. Also for tables with products of their own (pairs/pairs.h).
 * body.h lists the parameters; body_end.h undefines them.
 *
 * The small conversions at the end are plain C: they touch each element of Q, K, V, O once per
 * block of rows.
 */
#include "core/compiler.h"
#include "core/half.h"
#include "cpu/prefetch.h"
#include "core/segment.h"
#include "core/exp2.h"
#include "cpu/ukernel/members.h"
#include "cpu/ukernel/table.h"
#include <math.h>

#include VEC_HEADER

#if REAL_BITS == 32
#define real float
#define TYPE f32
#define REAL_MAX 3.402823466e38f
#define REAL_MIN 1.175494351e-38f
#define REAL_LEAST 1.401298464e-45f
#define FUSED fmaf
#define EXP2_MIN ATTN_EXP2_MIN_F32
#define EXP2_MAGIC ATTN_EXP2_MAGIC_F32
#define EXP2_FIRST ATTN_EXP2_FIRST_F32
#define EXP2_REST ATTN_EXP2_REST_F32
#else
#define real double
#define TYPE f64
#define REAL_MAX 1.7976931348623157e308
#define REAL_MIN 2.2250738585072014e-308
#define REAL_LEAST 4.9406564584124654e-324
#define FUSED fma
#define EXP2_MIN ATTN_EXP2_MIN_F64
#define EXP2_MAGIC ATTN_EXP2_MAGIC_F64
#define EXP2_FIRST ATTN_EXP2_FIRST_F64
#define EXP2_REST ATTN_EXP2_REST_F64
#endif
#define FN(name) ATTN_CAT(name##_, TYPE)
#if defined(UNFUSED)
#undef FUSED
#define FUSED(a, b, c) ((a) * (b) + (c))
#define TABLE_BITS ATTN_BITS_UNFUSED
#define PRODUCT_LOSS 0x1p-24
#else
#define TABLE_BITS ATTN_BITS_SCALAR
#define PRODUCT_LOSS 0
#endif
#ifndef EACH_STEP
#define EACH_STEP
#endif
#define STRIP (NV * VL)
#define SIDE 4 /* vectors side by side in a long chain of operations */
#define EACH ATTN_UNROLL for (int k = 0; k < count; k++)

/* ---- exp2 and tanh --------------------------------------------------------------------------- */

/* 2^(d c) = 2^n (1 + f y): n = round(d c), f the rest, y the polynomial (exp2.h). Adding `magic`
 * leaves n in the low bits of t. */
#define COEFF(x) y = v_fma(y, f, v_set1(x));
#define EACH_COEFF(x) EACH to[k] = v_fma(to[k], f[k], v_set1(x));
#define EXP2_SPLIT(d, c)                                    \
    const vec magic = v_set1(EXP2_MAGIC);                   \
    vec t = v_fma(d, c, magic), n = v_sub(t, magic);        \
    vec f = v_fms(d, c, n), y = v_set1(EXP2_FIRST);         \
    EXP2_REST(COEFF)

/* 2^(d c), or 0 where d < least = EXP2_MIN / c, for d <= 0 and c > 0; NaN for NaN. */
ATTN_INLINE vec FN(exp2)(vec d, vec c, vec least)
{
    EXP2_SPLIT(d, c)
    return v_zero_lt(d, least, v_ldexp(v_fma(y, f, v_set1(1)), t, n));
}

/* exp2 of `count` vectors step by step: one alone would wait for itself. */
ATTN_INLINE void FN(exp2_each)(vec *to, const vec *d, vec c, vec least, const int count)
{
    const vec magic = v_set1(EXP2_MAGIC);
    vec t[SIDE], n[SIDE], f[SIDE];
    EACH t[k] = v_fma(d[k], c, magic);
    EACH n[k] = v_sub(t[k], magic);
    EACH f[k] = v_fms(d[k], c, n[k]);
    EACH to[k] = v_set1(EXP2_FIRST);
    EXP2_REST(EACH_COEFF)
    EACH to[k] = v_fma(to[k], f[k], v_set1(1));
    EACH to[k] = v_zero_lt(d[k], least, v_ldexp(to[k], t[k], n[k]));
}

/* tanh(x) = -E / (E + 2) with E = exp(-2|x|) - 1, and the sign of x. E keeps its relative accuracy
 * near 0. */
ATTN_INLINE vec FN(tanh)(vec x)
{
    const vec most = v_set1(20), one = v_set1(1), log2e = v_set1((real)1.4426950408889634);
    vec size = v_abs(x), d = v_mul(v_set1(-2), v_select_lt(most, size, most, size));
    EXP2_SPLIT(d, log2e)
    vec power = v_ldexp(one, t, n), e = v_fma(power, v_mul(y, f), v_sub(power, one));
    vec minus = v_div(e, v_add(e, v_set1(2))); /* -tanh|x| */
    return v_select_lt(x, v_set1(0), minus, v_sub(v_set1(0), minus));
}
#undef EXP2_SPLIT
#undef COEFF
#undef EACH_COEFF

/* ---- scores ---------------------------------------------------------------------------------- */

static void FN(score)(void *s_, int64_t n, const attn_score_tile *tile, int lanes)
{
    real *s = s_;
    const real *bias = tile->bias, *slope = tile->slope, *distance = tile->distance;
    const vec scale = v_set1((real)tile->scale), cap = v_set1((real)tile->softcap),
              least = v_set1(-REAL_MAX);
    for (int64_t key = 0; key < n; key++) {
        for (int v = 0; v < lanes; v += VL) {
            vec x = v_mul(v_load(s + key * STRIP + v), scale);
            if (tile->softcap > 0) {
                x = v_mul(cap, FN(tanh)(v_div(x, cap)));
            }
            if (slope) {
                vec away = v_abs(v_sub(v_load(distance + v), v_set1((real)key)));
                x = v_sub(x, v_mul(v_load(slope + v), away));
            }
            if (bias) {
                vec b = v_load(bias + key * STRIP + v);
                x = v_select_lt(b, least, v_set1((real)-INFINITY), v_add(x, b));
            }
            v_store(s + key * STRIP + v, x);
        }
    }
}

static void FN(mask)(void *s_, int64_t n, const void *lo_, const void *hi_, int lanes)
{
    real *s = s_;
    const real *lo = lo_, *hi = hi_;
    const vec none = v_set1((real)-INFINITY);
    for (int64_t key = 0; key < n; key++) {
        /* visible: lo < key + 1 and key < hi */
        vec first = v_set1((real)key), past = v_set1((real)(key + 1));
        for (int v = 0; v < lanes; v += VL) {
            vec x = v_load(s + key * STRIP + v);
            x = v_select_lt(v_load(lo + v), past, x, none);
            v_store(s + key * STRIP + v, v_select_lt(first, v_load(hi + v), x, none));
        }
    }
}

/* ---- in and out ------------------------------------------------------------------------------ */

/* dst[0 .. n-1] = src widened. */
static void FN(widen)(void *to, const void *src, int64_t stride, int32_t dtype, int64_t n)
{
    real *dst = to;
    const char *at = src;
    const int64_t step = stride * attn_element_size(dtype);
    int64_t i = 0;
#if REAL_BITS == 32
    switch (stride == 1 ? dtype : 0) {
    case ATTN_F32:
        for (; i + VL <= n; i += VL) v_store(dst + i, v_load((const float *)src + i));
        break;
    case ATTN_F16:
        for (; i + VL <= n; i += VL) v_store(dst + i, v_load_f16((const uint16_t *)src + i));
        break;
    case ATTN_BF16:
        for (; i + VL <= n; i += VL) v_store(dst + i, v_load_bf16((const uint16_t *)src + i));
    }
#endif
    if (stride == 1 && dtype == ATTN_F64) {
        for (; i < n; i++) dst[i] = (real)((const double *)src)[i];
    }
    for (; i < n; i++) {
        dst[i] = (real)attn_element_to_f64(at + i * step, dtype);
    }
}

/* dst = src[0 .. n-1] narrowed. */
static void FN(narrow)(void *dst, int64_t stride, int32_t dtype, const real *src, int64_t n)
{
    char *at = dst;
    const int64_t step = stride * attn_element_size(dtype);
    int64_t i = 0;
#if REAL_BITS == 32
    switch (stride == 1 ? dtype : 0) {
    case ATTN_F32:
        for (; i + VL <= n; i += VL) v_store((float *)dst + i, v_load(src + i));
        break;
    case ATTN_F16:
        for (; i + VL <= n; i += VL) v_store_f16((uint16_t *)dst + i, v_load(src + i));
        break;
    case ATTN_BF16:
        for (; i + VL <= n; i += VL) v_store_bf16((uint16_t *)dst + i, v_load(src + i));
    }
#endif
    for (; i < n; i++) {
        attn_element_from_f64(at + i * step, dtype, (double)src[i]);
    }
}

/* True if rows of n elements can be read and written as whole vectors of reals. */
ATTN_INLINE bool FN(in_place)(int64_t stride, int32_t dtype, int64_t n)
{
    return stride == 1 && dtype == (REAL_BITS == 32 ? ATTN_F32 : ATTN_F64) && n % VL == 0;
}

enum { FN(CHUNK) = 64 }; /* columns moved at once between rows and lanes */

/* x[i] lane j becomes x[j] lane i, n of both: log2(n) perfect shuffles. */
ATTN_INLINE void FN(shuffle)(vec *x, const int n)
{
    vec y[VL];
    ATTN_UNROLL for (int step = 1; step < n; step *= 2) {
        ATTN_UNROLL for (int i = 0; i < n / 2; i++) {
            y[2 * i] = v_zip_low(x[i], x[i + n / 2]);
            y[2 * i + 1] = v_zip_high(x[i], x[i + n / 2]);
        }
        ATTN_UNROLL for (int i = 0; i < n; i++) x[i] = y[i];
    }
}

/* x[i] lane j becomes x[j] lane i. Where zips stay within halves or quarters of a vector, these
 * change places first, and smaller matrices are left. */
ATTN_INLINE void FN(transpose)(vec *x)
{
#if defined v_even_quarters
    enum { FN(FOURTH) = VL / 4 };
    vec y[VL];
    ATTN_UNROLL for (int i = 0; i < VL; i++) {
        const vec *from = x + i % FN(FOURTH);
        const vec a = from[0], b = from[FN(FOURTH)], c = from[2 * FN(FOURTH)],
                  d = from[3 * FN(FOURTH)];
        const int quarter = i / FN(FOURTH);
        const vec low = quarter % 2 ? v_odd_quarters(a, b) : v_even_quarters(a, b);
        const vec high = quarter % 2 ? v_odd_quarters(c, d) : v_even_quarters(c, d);
        y[i] = quarter / 2 ? v_odd_quarters(low, high) : v_even_quarters(low, high);
    }
    ATTN_UNROLL for (int i = 0; i < VL; i++) x[i] = y[i];
    ATTN_UNROLL for (int i = 0; i < 4; i++) FN(shuffle)(x + i * FN(FOURTH), FN(FOURTH));
#elif defined v_low_halves
    ATTN_UNROLL for (int i = 0; i < VL / 2; i++) {
        vec low = v_low_halves(x[i], x[i + VL / 2]);
        x[i + VL / 2] = v_high_halves(x[i], x[i + VL / 2]);
        x[i] = low;
    }
    FN(shuffle)(x, VL / 2);
    FN(shuffle)(x + VL / 2, VL / 2);
#else
    FN(shuffle)(x, VL);
#endif
}

#include "cpu/ukernel/body/body_quads.h"

/* NaN in lanes of a vector of lanes, or its first four, that hold NaN or Inf in a row of OT. */
ATTN_INLINE vec FN(not_finite)(const real *ot, int64_t dv, const bool four)
{
    vec sum[SIDE];
    int64_t c = 0;
    ATTN_UNROLL for (int k = 0; k < SIDE; k++) sum[k] = v_set1(0);
    for (; c <= dv - SIDE; c += SIDE, ot += SIDE * STRIP) {
        ATTN_UNROLL for (int k = 0; k < SIDE; k++) {
            const real *at = ot + k * STRIP;
            sum[k] = v_fma(four ? v_load4(at) : v_load(at), v_set1(0), sum[k]);
        }
    }
    for (; c < dv; c++, ot += STRIP) {
        sum[0] = v_fma(four ? v_load4(ot) : v_load(ot), v_set1(0), sum[0]);
    }
    return v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3]));
}

/* A whole vector would wait for four lanes that were stored by themselves. */
static bool FN(finite)(const void *ot_, int64_t dv, int lanes)
{
    real bad[STRIP], any = 0;
    const real *ot = ot_;
    if (FN(FEW) > 0 && lanes <= 4) {
        v_store(bad, FN(not_finite)(ot, dv, true));
    } else {
        for (int v = 0; v < lanes; v += VL) {
            v_store(bad + v, FN(not_finite)(ot + v, dv, false));
        }
    }
    for (int lane = 0; lane < lanes; lane++) {
        any += bad[lane];
    }
    return !(any != any);
}

#include "cpu/ukernel/body/body_bias.h"
#include "cpu/ukernel/body/body_store.h"
