/*
 * exhaust.c: see exhaust.h. exp2 is reached through the softmax step of one key per lane with a maximum of 0 so far and
 * c = 1: a score x <= 0 has probability 2^x, a score x > 0 becomes the maximum itself and alpha = 2^-x rescales what
 * was there. NaN gives NaN. So every float is an argument, and both uses of the function are covered.
 */
#include "exhaust.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What is known after the arguments so far. */
struct tally {
    double worst;      /* ulps */
    float worst_at;    /* argument */
    float first_zero;  /* the largest argument with result 0 */
    float last;        /* result, for monotony */
    int64_t backwards; /* results above that of a larger argument, the last of these arguments, how many ulps at most */
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

/* Of the binade of exact; exp2 in double is far closer to the truth than a float's ulp. */
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
static void sweep(const attn_ukernel *uk, uint32_t sign, struct tally *t)
{
    static _Alignas(64) float s[ATTN_MAX_KEY_BLOCK * MOST_STRIP], m[MOST_STRIP], l[MOST_STRIP], alpha[MOST_STRIP];
    const uint32_t lanes = (uint32_t)uk->strip;
    for (uint64_t bits = 0; bits < UINT64_C(1) << 31; bits += lanes) {
        for (uint32_t lane = 0; lane < lanes; lane++) {
            s[lane] = from_bits(sign | (uint32_t)((bits + lane) & 0x7FFFFFFF));
            m[lane] = l[lane] = 0;
        }
        float x[MOST_STRIP];
        memcpy(x, s, lanes * sizeof *x);
        uk->softmax(s, 0, s, 1, 1.0, &(attn_running){m, l, alpha, m}, (int)lanes);
        for (uint32_t lane = 0; lane < lanes && bits + lane < UINT64_C(1) << 31; lane++) {
            judge(t, x[lane], x[lane] > 0 ? alpha[lane] : s[lane]);
        }
        if (bits % (UINT64_C(1) << 24) < lanes && isatty(STDERR_FILENO)) {
            fprintf(stderr, "\r%s: %2.0f %% of the %s floats ", uk->name, (double)bits * 0x1p-31 * 100,
                    sign ? "negative" : "positive");
        }
    }
}

int exhaust_exp2(const attn_ukernel *uk)
{
    static uint64_t first_hash;
    struct tally t = {.first_zero = -INFINITY, .last = 1, .hash = UINT64_C(0xCBF29CE484222325)};
    if (uk->real_size != 4 || uk->p_bytes() != 0) {
        printf("%-12s has no f32 probabilities in place\n", uk->name);
        return 0;
    }
    uk->begin();
    sweep(uk, 0x80000000u, &t);
    t.last = 1;
    sweep(uk, 0, &t);
    uk->end();
    printf("%s%-12s exp2 on 2^32 floats: worst %.4f ulp at %a, 0 from %a down, %lld wrong, hash %016llx\n",
           isatty(STDERR_FILENO) ? "\r" : "", uk->name, t.worst, (double)t.worst_at, (double)t.first_zero,
           (long long)t.wrong, (unsigned long long)t.hash);
    printf("%-12s steps back: %lld of 2^32, of %.2f ulp at most, the last at %a\n", uk->name, (long long)t.backwards,
           t.most_backwards, (double)t.backwards_at);
    first_hash = first_hash == 0 ? t.hash : first_hash;
    if (t.hash != first_hash) {
        printf("FAIL %s: other bits than the first table\n", uk->name);
    }
    return t.wrong > 0 || t.most_backwards > 1.02 || t.hash != first_hash;
}
