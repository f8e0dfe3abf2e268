/*
 * check_quotients.c: store divides as IEEE 754 does, where that is hardest. Tables may multiply by
 * an inverse and correct the product by its remainder, which is within 2^-22 ulp of the quotient
 * before it is rounded. So only quotients that near to the middle between two floats could be
 * rounded wrongly: all of them are tried, or those of every check_step-th divisor (checkattn
 * --kernel=quotient --step=1).
 *
 * With A and B of 24 bits, such a middle is n / 2^s, n odd and of 25 bits, s = 24 or 25, and |A 2^s
 * - n B| = |r| <= 8. A given r leaves few n: n = -r / B modulo 2^s, where r / B is taken without
 * the powers of two that B has.
 */
#include "checks.h"

enum { MOST = 32, FIRST = 1 << 23 }; /* A for one B; the smallest of 24 bits */

/* 1 / b modulo 2^64, b odd; each of Newton's steps doubles the bits that are right. */
static uint64_t inverse_of(uint64_t b)
{
    uint64_t x = b;
    for (int i = 0; i < 5; i++) {
        x *= 2 - b * x;
    }
    return x;
}

/* The A of 24 bits for which A / B is that near to a middle. How many. */
static int hard_dividends(int64_t b, float *a)
{
    int zeros = 0, count = 0;
    while (!(b >> zeros & 1)) {
        zeros++;
    }
    const uint64_t inverse = inverse_of((uint64_t)b >> zeros);
    for (int s = 24; s <= 25; s++) {
        const int64_t modulus = (int64_t)1 << (s > zeros ? s - zeros : 0);
        for (int64_t r = -8; r <= 8; r++) {
            if (r == 0 || r % ((int64_t)1 << zeros) != 0) {
                continue;
            }
            int64_t n = (int64_t)((uint64_t)(-r / ((int64_t)1 << zeros)) * inverse &
                                  (uint64_t)(modulus - 1));
            for (n += (2 * FIRST - n + modulus - 1) / modulus * modulus; n < 4 * FIRST;
                 n += modulus) {
                const int64_t dividend = (n * b + r) >> s;
                if (n % 2 && dividend >= FIRST && dividend < 2 * FIRST && count < MOST) {
                    a[count++] = (float)dividend;
                }
            }
        }
    }
    return count;
}

void check_quotients(kernel_kit *kit)
{
    static _Alignas(64) float ot[MOST * KIT_MOST_LANES], divisor[KIT_MOST_LANES],
        o[KIT_MOST_LANES][MOST];
    void *rows[KIT_MOST_LANES];
    const int strip = kit->uk->strip;
    kit_member(kit, "quotient");
    if (kit->uk->real_size != 4) {
        return; /* f64 is divided by the processor */
    }
    for (int64_t b = FIRST; b < 2 * FIRST; b += strip * check_step) {
        for (int lane = 0; lane < strip; lane++) {
            float a[MOST];
            const int64_t by = b + lane * check_step < 2 * FIRST ? b + lane * check_step : b;
            const int count = hard_dividends(by, a);
            rows[lane] = o[lane], divisor[lane] = (float)by;
            for (int i = 0; i < MOST; i++) {
                ot[i * strip + lane] = i < count ? a[i] : divisor[lane];
            }
        }
        KIT_CALL(kit, kit->uk->store(rows, 1, ATTN_F32, ot, MOST, divisor, strip));
        for (int i = 0; i < MOST * strip; i++) {
            const float got = o[i % strip][i / strip], want = ot[i] / divisor[i % strip];
            if (got != want) {
                kit_fail(kit, "%.9g / %.9g = %.9g, not %.9g", (double)ot[i],
                         (double)divisor[i % strip], (double)got, (double)want);
                return;
            }
        }
    }
}
