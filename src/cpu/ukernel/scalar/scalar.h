/*
 * scalar.h: the reference microkernels, included by scalar.c for f32 and f64. Written to be read
 * beside the contract of each member in table.h. Parameters: real, FN, FMA, LDEXP, REAL_MIN and
 * EXP2_* (undefined at the end).
 */

enum { FN(STRIP) = 8 };

/* No state beyond the ordinary registers: begin and end. */
static void FN(no_state)(void)
{
}

static uint64_t FN(k_bytes)(int64_t d)
{
    return (uint64_t)ATTN_KEY_BLOCK * (uint64_t)d * sizeof(real);
}

static uint64_t FN(q_bytes)(int64_t d)
{
    return FN(STRIP) * (uint64_t)d * sizeof(real);
}

static uint64_t FN(p_bytes)(void)
{
    return 0;
}

static real FN(element)(const attn_rows *src, int64_t row, int64_t c)
{
    const char *data = src->data;
    if (attn_is_code(src->dtype)) {
        return (real)attn_row_value(data + row * src->row_stride, src->col_stride, src->dtype,
                                    &src->codes, row, c);
    }
    return (real)attn_element_to_f64(data + (row * src->row_stride + c * src->col_stride) *
                                                (int64_t)attn_dtype_size(src->dtype),
                                     src->dtype);
}

static void FN(pack_v)(void *v, int64_t at, const attn_rows *src, int64_t n, int64_t dv,
                       int64_t dv_pad)
{
    for (int64_t key = 0; key < n; key++) {
        for (int64_t c = 0; c < dv_pad; c++) {
            ((real *)v)[(at + key) * dv_pad + c] = c < dv ? FN(element)(src, key, c) : 0;
        }
    }
}

static void FN(pack_k)(void *k, int64_t at, const attn_rows *src, int64_t n, int64_t d)
{
    FN(pack_v)(k, at, src, n, d, d);
}

static void FN(pack_q)(void *qt, const void *const *row, int64_t stride, int32_t dtype, int64_t d,
                       double factor, int lanes)
{
    int64_t step = stride * (int64_t)attn_dtype_size(dtype);
    for (int lane = 0; lane < lanes; lane++) {
        for (int64_t c = 0; c < d; c++) {
            double x =
                row[lane] ? attn_element_to_f64((const char *)row[lane] + c * step, dtype) : 0;
            ((real *)qt)[c * FN(STRIP) + lane] = (real)(x * factor);
        }
    }
}

static void FN(qk)(void *s, const void *k, int64_t at, const void *qt, int64_t d, int64_t n,
                   int lanes)
{
    const real *key = (const real *)k + at * d, *q = qt;
    for (int64_t j = 0; j < n; j++) {
        for (int lane = 0; lane < lanes; lane++) {
            real sum = 0, chunk = 0;
            for (int64_t c = 0; c < d; c++) {
                chunk = FMA(key[j * d + c], q[c * FN(STRIP) + lane], chunk);
                if (c % ATTN_DOT_CHUNK == ATTN_DOT_CHUNK - 1 || c == d - 1) {
                    sum = c < ATTN_DOT_CHUNK ? chunk : sum + chunk;
                    chunk = 0;
                }
            }
            ((real *)s)[j * FN(STRIP) + lane] = sum;
        }
    }
}

/* y with 2^(d c) = 2^n + 2^n f y, n = round(d c) and f = d c - n (exp2.h). */
static real FN(exp2_split)(real d, real c, real *n, real *f)
{
    *n = FMA(d, c, EXP2_MAGIC) - EXP2_MAGIC;
    *f = FMA(d, c, -*n);
    real y = EXP2_FIRST;
#define COEFF(x) y = FMA(y, *f, x);
    EXP2_REST(COEFF)
#undef COEFF
    return y;
}

static real FN(exp2)(real d, real c, real least)
{
    if (d < least) {
        return 0;
    }
    if (d != d) {
        return d;
    }
    real n, f, y = FN(exp2_split)(d, c, &n, &f);
    return LDEXP(FMA(y, f, 1), (int)n);
}

static real FN(tanh)(real x)
{
    if (x != x) {
        return x;
    }
    real size = x < 0 ? -x : x, n, f;
    real y = FN(exp2_split)(-2 * (size < 20 ? size : 20), (real)1.4426950408889634, &n, &f);
    real power = LDEXP(1, (int)n), e = FMA(power, y * f, power - 1), t = e / (e + 2);
    return x < 0 ? t : 0 - t;
}

static void FN(bias)(void *tile, int64_t n, const attn_bias_rows *rows)
{
    const int64_t step = rows->bias_stride * (int64_t)attn_dtype_size(rows->dtype);
    for (int64_t i = 0; i < n * FN(STRIP); i++) {
        int64_t key = i / FN(STRIP), lane = i % FN(STRIP);
        const char *bias = rows->bias[lane], *mask = rows->mask[lane];
        bool hidden = mask && !attn_mask_shows(mask, rows->mask_stride, rows->mask_dtype,
                                               rows->mask_first + key);
        real b = bias ? (real)attn_element_to_f64(bias + key * step, rows->dtype) : 0;
        ((real *)tile)[i] = hidden ? (real)-INFINITY : b;
    }
}

static void FN(score)(void *s, int64_t n, const attn_score_tile *tile, int lanes)
{
    for (int64_t key = 0; key < n; key++) {
        for (int lane = 0; lane < lanes; lane++) {
            int64_t at = key * FN(STRIP) + lane;
            real x = ((real *)s)[at] * (real)tile->scale;
            if (tile->softcap > 0) {
                x = (real)tile->softcap * FN(tanh)(x / (real)tile->softcap);
            }
            if (tile->slope) {
                real away = ((const real *)tile->distance)[lane] - (real)key;
                x = x - ((const real *)tile->slope)[lane] * (away < 0 ? -away : away);
            }
            if (tile->bias) {
                real b = ((const real *)tile->bias)[at];
                x = b == (real)-INFINITY ? b : x + b;
            }
            ((real *)s)[at] = x;
        }
    }
}

static void FN(mask)(void *s, int64_t n, const void *lo, const void *hi, int lanes)
{
    for (int64_t key = 0; key < n; key++) {
        for (int lane = 0; lane < lanes; lane++) {
            if ((real)key < ((const real *)lo)[lane] || (real)key >= ((const real *)hi)[lane]) {
                ((real *)s)[key * FN(STRIP) + lane] = (real)-INFINITY;
            }
        }
    }
}

static void FN(softmax)(void *p_, int64_t done, void *s, int64_t n, double c,
                        const attn_running *state, int lanes)
{
    (void)p_, (void)done; /* in place */
    for (int lane = 0; lane < lanes; lane++) {
        real *score = (real *)s + lane, *max = (real *)state->m + lane,
             *sum = (real *)state->l + lane;
        real top = *max, block = 0, least = (real)(EXP2_MIN / c);
        for (int64_t key = 0; key < n; key++) {
            top = score[key * FN(STRIP)] > top ? score[key * FN(STRIP)] : top;
        }
        real used = top == (real)-INFINITY ? 0 : top; /* nothing seen yet: any finite reference */
        for (int64_t key = 0; key < n; key++) {
            real p = FN(exp2)(score[key * FN(STRIP)] - used, (real)c, least);
            score[key * FN(STRIP)] = p;
            block += p;
        }
        real a = FN(exp2)(*max - used, (real)c, least);
        *max = top;
        *sum = FMA(*sum, a, block);
        ((real *)state->alpha)[lane] = a;
    }
}

/* A block is one tile. */
static void FN(qk_softmax)(void *p, int64_t done, void *s, const attn_keys *keys, double c,
                           const attn_running *state, int lanes)
{
    FN(qk)(s, keys->k, keys->at, keys->qt, keys->d, keys->n, lanes);
    FN(softmax)(p, done, s, keys->n, c, state, lanes);
}

static void FN(pv)(void *ot, const void *v, int64_t at, const void *p, int64_t dv_pad, int64_t n,
                   const void *alpha, int lanes)
{
    const real *x = (const real *)v + at * dv_pad;
    for (int64_t c = 0; c < dv_pad; c++) {
        for (int lane = 0; lane < lanes; lane++) {
            real sum = 0, *o = (real *)ot + c * FN(STRIP) + lane;
            for (int64_t key = 0; key < n; key++) {
                sum = FMA(x[key * dv_pad + c], ((const real *)p)[key * FN(STRIP) + lane], sum);
            }
            *o = alpha ? FMA(*o, ((const real *)alpha)[lane], sum) : sum;
        }
    }
}

static bool FN(finite)(const void *ot, int64_t dv, int lanes)
{
    for (int64_t c = 0; c < dv; c++) {
        for (int lane = 0; lane < lanes; lane++) {
            real x = ((const real *)ot)[c * FN(STRIP) + lane];
            if (x - x != 0) {
                return false;
            }
        }
    }
    return true;
}

static void FN(store)(void *const *row, int64_t stride, int32_t dtype, const void *ot, int64_t dv,
                      const void *divisor, int lanes)
{
    int64_t step = stride * (int64_t)attn_dtype_size(dtype);
    for (int lane = 0; lane < lanes; lane++) {
        real by = divisor ? ((const real *)divisor)[lane] : 1;
        for (int64_t c = 0; c < dv; c++) {
            real x = by == 0 ? 0 : ((const real *)ot)[c * FN(STRIP) + lane] / by;
            /* + 0: a zero is positive however many empty tiles were skipped */
            attn_element_from_f64((char *)row[lane] + c * step, dtype, (double)(x + 0));
        }
    }
}

static void FN(logs)(double *lse, double *rest, const attn_running *state, double unit, int lanes)
{
    for (int lane = 0; lane < FN(STRIP); lane++) {
        const double l = (double)((const real *)state->l)[lane];
        const double m = (double)((const real *)state->m)[lane];
        const double max = m * unit, ln = attn_ln(l), sum = max + ln;
        const bool none = lane >= lanes || l == 0;
        lse[lane] = none ? -INFINITY : sum;
        rest[lane] = none ? 0 : attn_sum_rest(max, ln, sum);
    }
}

static real FN(part_element)(const attn_part *part, int64_t at, int lane)
{
    const real by = part->divisor ? ((const real *)part->divisor)[lane] : 1;
    return by == 0 ? 0 : ((const real *)part->o)[at] / by;
}

static void FN(join)(const attn_part *node, const attn_part *part, int64_t dv, int lanes)
{
    for (int lane = 0; lane < lanes; lane++) {
        const attn_join join =
            attn_segment_join(node->lse[lane], node->rest[lane], part->lse[lane], part->rest[lane]);
        node->lse[lane] = join.lse, node->rest[lane] = join.rest;
        for (int64_t at = lane; at < dv * FN(STRIP); at += FN(STRIP)) {
            real *to = (real *)node->o + at;
            *to = FMA(FN(part_element)(part, at, lane), (real)join.b, *to * (real)join.a);
        }
    }
}

static void FN(copy)(const attn_part *node, const attn_part *part, int64_t dv, int lanes)
{
    for (int lane = 0; lane < lanes; lane++) {
        node->lse[lane] = part->lse[lane], node->rest[lane] = part->rest[lane];
        for (int64_t at = lane; at < dv * FN(STRIP); at += FN(STRIP)) {
            ((real *)node->o)[at] = FN(part_element)(part, at, lane);
        }
    }
}

#include "cpu/ukernel/scalar/scalar_grad.h"

const attn_ukernel ATTN_CAT(attn_ukernel_, FN(scalar)) = {
    .name = ATTN_STRING(FN(scalar)),
    .grad = &FN(grad),
    .bits = ATTN_BITS_SCALAR,
    .vector_bits = 8 * (int)sizeof(real),
    .strip = FN(STRIP),
    .granule = 1,
    .v_bytes = FN(k_bytes),
    .q_bytes = FN(q_bytes),
    .p_bytes = FN(p_bytes),
    ATTN_TABLE_KERNELS,
};

#undef real
#undef FN
#undef FMA
#undef LDEXP
#undef REAL_MIN
#undef EXP2_MIN
#undef EXP2_MAGIC
#undef EXP2_FIRST
#undef EXP2_REST
