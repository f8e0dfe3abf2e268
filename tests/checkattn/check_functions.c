/*
 * check_functions.c: the two functions inside the kernels, over their whole range and in ulps
 * (contract A7): exp2 as the softmax of one key below a maximum of 0 with c = 1, tanh as the score
 * with scale and softcap 1.
 */
#include "checks.h"

#include <float.h>
#include <math.h>
#include <string.h>

int64_t check_step = 4099;

/* Ulps of the exact value's binade between got and exact. */
static double ulps(const kit *k, double got, long double exact)
{
    int digits = k->uk->real_size == 4 ? FLT_MANT_DIG : DBL_MANT_DIG, exponent;
    frexpl(exact, &exponent);
    return (double)(fabsl((long double)got - exact) / ldexpl(1, exponent - digits));
}

/* The i-th argument in [least, 0]: every float of a step in turn, or doubles evenly. */
static double argument(const kit *k, int64_t i, double least)
{
    if (k->uk->real_size == 8) {
        return least * (double)i / (double)(1 << 18);
    }
    uint32_t bits = (uint32_t)(0x80000000u + (uint64_t)i);
    float x;
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

/* Calls judge for tiles of arguments from 0 down to least. */
static void sweep(kit *k, double least, void (*judge)(kit *k, const double *x, int64_t count))
{
    static double x[KIT_MOST_KEYS * KIT_MOST_LANES];
    int64_t count = (int64_t)k->uk->key_tile * k->uk->strip,
            step = k->uk->real_size == 4 ? check_step : 1, i = 0;
    bool more = true;
    while (more) {
        for (int64_t n = 0; n < count; n++, i += step) {
            double next = argument(k, i, least);
            more = more && next >= least && i < INT64_C(0x7f800000);
            x[n] = more ? next : least;
        }
        judge(k, x, count);
    }
}

static void judge_exp2(kit *k, const double *x, int64_t count)
{
    size_t real = (size_t)k->uk->real_size, lanes = (size_t)k->uk->strip * real;
    void *s = kit_slot(k, SLOT_S, (size_t)count * real), *m = kit_slot(k, SLOT_M, lanes);
    void *l = kit_slot(k, SLOT_L, lanes), *alpha = kit_slot(k, SLOT_ALPHA, lanes);
    for (int64_t i = 0; i < count; i++) {
        kit_put(k, s, i, x[i]);
    }
    for (int lane = 0; lane < k->uk->strip; lane++) {
        kit_put(k, m, lane, 0);
        kit_put(k, l, lane, 0);
    }
    kit_doing(k, "x=%a ..", x[0]);
    KIT_CALL(k, k->uk->softmax(s, 0, s, count / k->uk->strip, 1,
                               &(attn_running){.m = m, .l = l, .alpha = alpha, .top = m},
                               k->uk->strip));
    for (int64_t i = 0; i < count; i++) {
        double got = kit_get(k, s, i), error = ulps(k, got, exp2l((long double)x[i]));
        k->worst_exp2 = fmax(k->worst_exp2, error);
        if (!(error <= (k->uk->real_size == 4 ? 1 : 1.05))) {
            kit_fail(k, "exp2(%a) = %a, %.3f ulp off", x[i], got, error);
        }
    }
}

/* The exponents for which a normal number is promised. */
void check_exp2(kit *k)
{
    kit_member(k, "softmax");
    if (k->same_bits) {
        sweep(k, k->uk->real_size == 4 ? -125 : -1021, judge_exp2);
    }
}

static void judge_tanh(kit *k, const double *x, int64_t count)
{
    const attn_score_tile tile = {.scale = 1, .softcap = 1};
    void *s = kit_slot(k, SLOT_S, (size_t)count * (size_t)k->uk->real_size);
    for (int64_t i = 0; i < count; i++) {
        kit_put(k, s, i, i % 2 ? -x[i] : x[i]);
    }
    kit_doing(k, "x=%a ..", x[0]);
    KIT_CALL(k, k->uk->score(s, count / k->uk->strip, &tile, k->uk->strip));
    for (int64_t i = 0; i < count; i++) {
        long double exact = tanhl((long double)(i % 2 ? -x[i] : x[i]));
        double got = kit_get(k, s, i), error = exact == 0 ? fabs(got) : ulps(k, got, exact);
        if (fabsl(exact) < (k->uk->real_size == 4 ? (long double)FLT_MIN : (long double)DBL_MIN)) {
            continue; /* subnormal */
        }
        k->worst_tanh = fmax(k->worst_tanh, error);
        if (!(error <= (k->uk->real_size == 4 ? 4.1 : 8))) {
            kit_fail(k, "tanh(%a) = %a, %.3f ulp off", (double)(i % 2 ? -x[i] : x[i]), got, error);
        }
    }
}

void check_tanh(kit *k)
{
    kit_member(k, "score");
    sweep(k, -30, judge_tanh);
}
