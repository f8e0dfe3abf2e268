/*
 * check_functions.c: the two functions inside the kernels, over their whole range and in ulps
 * (contract A7): exp2 as the softmax of one key below a maximum of 0 with c = 1, tanh as the score
 * with scale and softcap 1.
 */
#include "checks.h"

#include <float.h>
#include <math.h>
#include <string.h>

#ifdef SLOW
int64_t check_step = INT64_C(4099) * SLOW;
#else
int64_t check_step = 4099;
#endif

/* The exact values, in double for f32 (sums.h says why). */
static long double exact_exp2(const kernel_kit *kit, double x)
{
    return kit->uk->real_size == 4 ? (long double)exp2(x) : exp2l((long double)x);
}

static long double exact_tanh(const kernel_kit *kit, double x)
{
    return kit->uk->real_size == 4 ? (long double)tanh(x) : tanhl((long double)x);
}

/* Ulps of the exact value's binade between got and exact. */
static double ulps(const kernel_kit *kit, double got, long double exact)
{
    int exponent;
    if (kit->uk->real_size == 4) {
        frexp((double)exact, &exponent);
        return fabs(got - (double)exact) / ldexp(1, exponent - FLT_MANT_DIG);
    }
    frexpl(exact, &exponent);
    return (double)(fabsl((long double)got - exact) / ldexpl(1, exponent - DBL_MANT_DIG));
}

/* The i-th argument in [least, 0]: every float of a step in turn, or doubles evenly. */
static double argument(const kernel_kit *kit, int64_t i, double least)
{
    if (kit->uk->real_size == 8) {
        return least * (double)i / (double)(1 << 18);
    }
    uint32_t bits = (uint32_t)(0x80000000u + (uint64_t)i);
    float x;
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

/* Calls judge for tiles of arguments from 0 down to least. */
static void sweep(kernel_kit *kit, double least,
                  void (*judge)(kernel_kit *kit, const double *x, int64_t count))
{
    static double x[KIT_MOST_KEYS * KIT_MOST_LANES];
    int64_t count = (int64_t)kit->uk->key_tile * kit->uk->strip,
            step = kit->uk->real_size == 4 ? check_step : 1, i = 0;
    bool more = true;
    while (more) {
        for (int64_t n = 0; n < count; n++, i += step) {
            double next = argument(kit, i, least);
            more = more && next >= least && i < INT64_C(0x7f800000);
            x[n] = more ? next : least;
        }
        judge(kit, x, count);
    }
}

static void judge_exp2(kernel_kit *kit, const double *x, int64_t count)
{
    size_t real = (size_t)kit->uk->real_size, lanes = (size_t)kit->uk->strip * real;
    void *s = kit_slot(kit, SLOT_S, (size_t)count * real), *m = kit_slot(kit, SLOT_M, lanes);
    void *l = kit_slot(kit, SLOT_L, lanes), *alpha = kit_slot(kit, SLOT_ALPHA, lanes);
    for (int64_t i = 0; i < count; i++) {
        kit_put(kit, s, i, x[i]);
    }
    for (int lane = 0; lane < kit->uk->strip; lane++) {
        kit_put(kit, m, lane, 0);
        kit_put(kit, l, lane, 0);
    }
    kit_doing(kit, "x=%a ..", x[0]);
    KIT_CALL(kit, kit->uk->softmax(s, 0, s, count / kit->uk->strip, 1,
                                   &(attn_running){.m = m, .l = l, .alpha = alpha, .top = m},
                                   kit->uk->strip));
    for (int64_t i = 0; i < count; i++) {
        double got = kit_get(kit, s, i), error = ulps(kit, got, exact_exp2(kit, x[i]));
        kit->worst_exp2 = fmax(kit->worst_exp2, error);
        if (!(error <= (kit->uk->real_size == 4 ? 1 : 1.05))) {
            kit_fail(kit, "exp2(%a) = %a, %.3f ulp off", x[i], got, error);
        }
    }
}

/* The exponents for which a normal number is promised. */
void check_exp2(kernel_kit *kit)
{
    kit_member(kit, "softmax");
    if (kit->same_bits) {
        sweep(kit, kit->uk->real_size == 4 ? -125 : -1021, judge_exp2);
    }
}

static void judge_tanh(kernel_kit *kit, const double *x, int64_t count)
{
    const attn_score_tile tile = {.scale = 1, .softcap = 1};
    void *s = kit_slot(kit, SLOT_S, (size_t)count * (size_t)kit->uk->real_size);
    for (int64_t i = 0; i < count; i++) {
        kit_put(kit, s, i, i % 2 ? -x[i] : x[i]);
    }
    kit_doing(kit, "x=%a ..", x[0]);
    KIT_CALL(kit, kit->uk->score(s, count / kit->uk->strip, &tile, kit->uk->strip));
    for (int64_t i = 0; i < count; i++) {
        const long double exact = exact_tanh(kit, i % 2 ? -x[i] : x[i]);
        double got = kit_get(kit, s, i), error = exact == 0 ? fabs(got) : ulps(kit, got, exact);
        if (fabs((double)exact) < (kit->uk->real_size == 4 ? (double)FLT_MIN : DBL_MIN)) {
            continue; /* subnormal */
        }
        kit->worst_tanh = fmax(kit->worst_tanh, error);
        if (!(error <= (kit->uk->real_size == 4 ? 4.1 : 8))) {
            kit_fail(kit, "tanh(%a) = %a, %.3f ulp off", (double)(i % 2 ? -x[i] : x[i]), got,
                     error);
        }
    }
}

void check_tanh(kernel_kit *kit)
{
    kit_member(kit, "score");
    sweep(kit, -30, judge_tanh);
}
