/*
 * exhaust.c: see exhaust.h. exp2 is reached through the softmax step of one key per lane with a
 * maximum of 0 so far and c = 1: a score x <= 0 has probability 2^x, a score x > 0 becomes the
 * maximum itself and alpha = 2^-x rescales what was there. NaN gives NaN. So every float is an
 * argument, and both uses of the function are covered. Tables with P in parts have an exp2 of their
 * own: what l counts and what products see.
 */
#include "exhaust.h"
#include "kit.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Results after the arguments so far. */
struct tally {
    double worst;     /* ulps */
    float worst_at;   /* argument */
    float first_zero; /* the largest argument with result 0 */
    float last;       /* result, for monotony */
    /* results above that of a larger argument, the last of these arguments, how many ulps at
     * most */
    int64_t backwards;
    float backwards_at;
    double most_backwards;
    int64_t wrong; /* beyond 1.02 ulp, or not 0, 1 or NaN where that is due */
    uint64_t hash;
};

enum { MOST_STRIP = ATTN_MAX_STRIP };

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* One ulp of the binade of exact; exp2 in double is far closer to the truth than a float's ulp. */
static double ulps(float got, double exact)
{
    int exponent;
    frexp(exact, &exponent);
    return fabs((double)got - exact) / ldexp(1, exponent - FLT_MANT_DIG);
}

static void judge(struct tally *t, float x, float got)
{
    uint32_t bits;
    float argument = -fabsf(x);
    memcpy(&bits, &got, sizeof bits);
    t->hash = (t->hash ^ (isnan(got) ? 0x7FC00000u : bits)) * UINT64_C(0x100000001B3);
    if (isnan(x)) {
        t->wrong += !isnan(got);
        return;
    }
    if (got > t->last) {
        t->backwards++;
        t->backwards_at = argument;
        t->most_backwards = fmax(t->most_backwards, ulps(t->last, (double)got));
    }
    t->last = got;
    if (argument < -125) {
        t->wrong += got != 0;
        t->first_zero = fmaxf(t->first_zero, got == 0 ? argument : t->first_zero);
        return;
    }
    double error = ulps(got, exp2((double)argument));
    t->worst_at = error > t->worst ? argument : t->worst_at;
    t->worst = fmax(t->worst, error);
    t->wrong += !(error <= 1);
}

/* Floats of the given sign bit, from 0 away, then NaN. */
static void sweep(const attn_ukernel *table, uint32_t sign, struct tally *t)
{
    static _Alignas(64) float s[ATTN_MAX_KEY_BLOCK * MOST_STRIP], m[MOST_STRIP], l[MOST_STRIP],
        alpha[MOST_STRIP];
    const uint32_t lanes = (uint32_t)table->strip;
    for (uint64_t bits = 0; bits < UINT64_C(1) << 31; bits += lanes) {
        for (uint32_t lane = 0; lane < lanes; lane++) {
            s[lane] = from_bits(sign | (uint32_t)((bits + lane) & 0x7FFFFFFF));
            m[lane] = l[lane] = 0;
        }
        float x[MOST_STRIP];
        memcpy(x, s, lanes * sizeof *x);
        table->softmax(s, 0, s, 1, 1.0, &(attn_running){.m = m, .l = l, .alpha = alpha, .top = m},
                       (int)lanes);
        for (uint32_t lane = 0; lane < lanes && bits + lane < UINT64_C(1) << 31; lane++) {
            judge(t, x[lane], x[lane] > 0 ? alpha[lane] : s[lane]);
        }
        if (bits % (UINT64_C(1) << 24) < lanes && isatty(STDERR_FILENO)) {
            fprintf(stderr, "\r%s: %2.0f %% of the %s floats ", table->name,
                    (double)bits * 0x1p-31 * 100, sign ? "negative" : "positive");
        }
    }
}

/* ---- tables whose P is the sum of bf16 parts ------------------------------------------------- */

/* Relative errors of the probability that l counts, and of the one that products see. */
struct relative {
    double worst_l, worst_p;
    double sum_l, sum_p; /* over equally spaced arguments: the bias, once divided by their number */
    int64_t wrong;       /* not 0 from -126 down, not 1 at 0 */
};

static double sum_of_parts(const attn_ukernel *table, const uint16_t *p, uint32_t lane)
{
    const int64_t part = (int64_t)table->key_block * table->strip,
                  parts = (int64_t)table->p_bytes() / 2 / part;
    double sum = 0;
    for (int64_t i = 0; i < parts; i++) {
        sum += (double)from_bits((uint32_t)p[i * part + 2 * lane] << 16);
    }
    return sum;
}

/* Arguments x, one key per lane beside a reference of 0; bits = those of -x. */
static void judge_parts(const attn_ukernel *table, const float *x, uint32_t lanes,
                        struct relative *r)
{
    static _Alignas(64) uint16_t p[3 * ATTN_MAX_KEY_BLOCK * MOST_STRIP];
    static _Alignas(64) float s[ATTN_MAX_KEY_BLOCK * MOST_STRIP], m[MOST_STRIP], l[MOST_STRIP],
        alpha[MOST_STRIP];
    memcpy(s, x, lanes * sizeof *x);
    memset(m, 0, sizeof m);
    memset(l, 0, sizeof l);
    table->softmax(p, 0, s, 1, 1.0, &(attn_running){.m = m, .l = l, .alpha = alpha}, (int)lanes);
    for (uint32_t lane = 0; lane < lanes; lane++) {
        const double exact = exp2((double)x[lane]), got = sum_of_parts(table, p, lane);
        if (x[lane] < -126 || x[lane] == 0) {
            r->wrong += got != (x[lane] == 0) || l[lane] != (float)(x[lane] == 0);
        } else if (x[lane] >= -125) {
            const double error_l = (double)l[lane] / exact - 1, error_p = got / exact - 1;
            r->worst_l = fmax(r->worst_l, fabs(error_l));
            r->worst_p =
                /* parts get lost below 2^-126 */
                x[lane] < -100 ? r->worst_p : fmax(r->worst_p, fabs(error_p));
            r->sum_l += error_l, r->sum_p += error_p;
        }
    }
}

int exhaust_parts(const attn_ukernel *table)
{
    /* 2^-27 and 130; beyond, 1 and 0 */
    enum { EVEN = 1 << 24, LEAST = 0x32000000, MOST = 0x43020000, SAMPLE = 1024 };
    const uint32_t lanes = (uint32_t)table->strip;
    float x[MOST_STRIP];
    struct relative all = {0}, even = {0};
    kit_begin(table);
    for (uint32_t bits = 0; bits <= 0x7F800000u - lanes;
         bits += bits < LEAST || bits > MOST ? SAMPLE : lanes) {
        for (uint32_t lane = 0; lane < lanes; lane++) {
            x[lane] = from_bits(0x80000000u | (bits + lane));
        }
        judge_parts(table, x, lanes, &all);
    }
    for (uint32_t i = 0; i < EVEN; i += lanes) {
        for (uint32_t lane = 0; lane < lanes; lane++) {
            x[lane] = -(float)(i + lane) / (float)EVEN;
        }
        judge_parts(table, x, lanes, &even);
    }
    kit_end(table);
    printf("%-12s 2^x for x <= 0, relative: in l worst %.3g, mean %+.2g; in P worst %.3g, mean "
           "%+.2g; %lld wrong\n",
           table->name, all.worst_l, even.sum_l / (double)EVEN, all.worst_p,
           even.sum_p / (double)EVEN, (long long)all.wrong);
    return all.wrong > 0 || !(all.worst_l <= 0x1p-22) || !(all.worst_p <= 0x1p-8);
}

int exhaust_exp2(const attn_ukernel *table)
{
    static uint64_t first_hash;
    struct tally t = {.first_zero = -INFINITY, .last = 1, .hash = UINT64_C(0xCBF29CE484222325)};
    kit_begin(table);
    sweep(table, 0x80000000u, &t);
    t.last = 1;
    sweep(table, 0, &t);
    kit_end(table);
    printf("%s%-12s exp2 on 2^32 floats: worst %.4f ulp at %a, 0 from %a down, %lld wrong, hash "
           "%016llx\n",
           isatty(STDERR_FILENO) ? "\r" : "", table->name, t.worst, (double)t.worst_at,
           (double)t.first_zero, (long long)t.wrong, (unsigned long long)t.hash);
    printf("%-12s steps back: %lld of 2^32, of %.2f ulp at most, the last at %a\n", table->name,
           (long long)t.backwards, t.most_backwards, (double)t.backwards_at);
    first_hash = first_hash == 0 ? t.hash : first_hash;
    if (t.hash != first_hash) {
        printf("FAIL %s: other bits than the first table\n", table->name);
    }
    return t.wrong > 0 || t.most_backwards > 1.02 || t.hash != first_hash;
}
