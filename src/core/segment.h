/*
 * segment.h: the order in which keys are summed, and rows in gradients of keys. A segment is a run
 * of keys, counted from the first key of the sequence, or of rows, counted from the first row of a
 * KV head. It is summed from a start of its own. Segments are the leaves of a binary tree: leaves
 * 2i and 2i + 1 have one parent, and so on upwards. A part without a visible key changes nothing.
 * The tree depends on the number of a segment alone, so that the sums over
 * keys 0 .. n-1 and n .. 2n-1, with n a power of two segments, are nodes of the sum over all of
 * them, whoever computes the two.
 *
 * The rounding errors of a chain of n sums grow like sqrt(n), those of a tree like sqrt(log n)
 * (Higham, The accuracy of floating point summation, 1993).
 */
#ifndef ATTN_CORE_SEGMENT_H
#define ATTN_CORE_SEGMENT_H

#include "core/compiler.h"
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Lengths of segments; part of the numerics (docs/numerics.md), and multiples of every table's
 * blocks. The forward pass has ATTN_SEGMENT keys, or ATTN_LONG_SEGMENT where P has 16 bits or fewer
 * (attn_ukernel.segment). A segment of dQ has ATTN_DQ_SEGMENTS times as many keys, one of dK and dV
 * ATTN_DKV_SEGMENTS times as many rows. A long segment is a node of the tree of short ones. */
enum {
    ATTN_SEGMENT = 2048,
    ATTN_LONG_SEGMENT = 2 * ATTN_SEGMENT,
    ATTN_DQ_SEGMENTS = 2,
    ATTN_DKV_SEGMENTS = 3
};

/* The first segment behind the smallest node that holds segments first < last. */
ATTN_CORE int64_t attn_segment_node_end(int64_t first, int64_t last)
{
    int level = 0;
    while (first >> level != last >> level) {
        level++;
    }
    return ((last >> level) + 1) << level;
}

/* The most nodes that wait for others while `segments` segments are summed in turn. */
ATTN_CORE int attn_segment_depth(int64_t segments)
{
    int depth = 0;
    while ((segments + 1) >> (depth + 1) > 0) {
        depth++;
    }
    return depth;
}

/* Sums over segments that wait to be joined, oldest first. The last one is the sum at hand. */
enum { ATTN_SEGMENT_LEVELS = 64 };
typedef struct attn_segment_stack {
    int sums;
    int64_t last[ATTN_SEGMENT_LEVELS]; /* the last segment of each sum */
} attn_segment_stack;

/* The most sums on a stack while `segments` segments, at least one, are summed in turn. */
ATTN_CORE int attn_segment_sums(int64_t segments)
{
    return attn_segment_depth(segments - 1) + 1;
}

/* True if the sum at hand is that of this segment. */
ATTN_CORE bool attn_segment_at_hand(const attn_segment_stack *stack, int64_t segment)
{
    return stack->sums > 0 && stack->last[stack->sums - 1] == segment;
}

/* Joins the two youngest sums if their parent ends at or before segment `next`. True if the caller
 * has to add the younger one, which has left the stack, to the other. */
ATTN_CORE bool attn_segment_settle(attn_segment_stack *stack, int64_t next)
{
    const int top = stack->sums - 1;
    if (top < 1 || attn_segment_node_end(stack->last[top - 1], stack->last[top]) > next) {
        return false;
    }
    stack->last[top - 1] = stack->last[top];
    stack->sums = top;
    return true;
}

/* ---- exp and ln, without branches, so that loops over rows become vectors -------------------- */

ATTN_CORE double attn_bits_to_f64(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

ATTN_CORE uint64_t attn_f64_to_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* exp(x) for x <= 0, 0 below -700: 2^n exp(r), n = round(x / ln 2), the Taylor series of r to
 * r^12. */
ATTN_CORE double attn_exp_negative(double x)
{
    const double magic = 0x1.8p52, t = x * 1.4426950408889634 + magic, n = t - magic;
    const double r = (x - n * 0x1.62e42fefa38p-1) - n * 0x1.ef35793c7673p-45;
    double y = 1.0 / 479001600;
    y = y * r + 1.0 / 39916800;
    y = y * r + 1.0 / 3628800;
    y = y * r + 1.0 / 362880;
    y = y * r + 1.0 / 40320;
    y = y * r + 1.0 / 5040;
    y = y * r + 1.0 / 720;
    y = y * r + 1.0 / 120;
    y = y * r + 1.0 / 24;
    y = y * r + 1.0 / 6;
    y = y * r + 0.5;
    y = (y * r) * r + r;
    const double scale = attn_bits_to_f64((attn_f64_to_bits(t) + 1023) << 52);
    return x < -700 ? 0 : (1 + y) * scale;
}

/* ln x for a normal x > 0; NaN for NaN: e ln 2 + 2 atanh s, x = 2^e m, 3/4 < m < 3/2 or so,
 * s = (m - 1) / (m + 1), the series of s to s^19. */
ATTN_CORE double attn_ln(double x)
{
    const uint64_t bits = attn_f64_to_bits(x), half = UINT64_C(0x3fe6a09e667f3bcd); /* sqrt(1/2) */
    const uint64_t up = (bits - half) >> 52; /* e, modulo 2^12 */
    const double m = attn_bits_to_f64(bits - (up << 52));
    const double e =
        attn_bits_to_f64(UINT64_C(0x4330000000000000) | ((up + 1024) & 4095)) - (0x1p52 + 1024);
    const double s = (m - 1) / (m + 1), q = s * s;
    double y = 2.0 / 19;
    y = y * q + 2.0 / 17;
    y = y * q + 2.0 / 15;
    y = y * q + 2.0 / 13;
    y = y * q + 2.0 / 11;
    y = y * q + 2.0 / 9;
    y = y * q + 2.0 / 7;
    y = y * q + 2.0 / 5;
    y = y * q + 2.0 / 3;
    y = e * 0x1.62e42fefa38p-1 + (2 * s + (y * q * s + e * 0x1.ef35793c7673p-45));
    return x == x ? y : x;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* The error of a + b rounded to sum (Knuth); 0 for infinities. */
ATTN_CORE double attn_sum_rest(double a, double b, double sum)
{
    const double back = sum - a, rest = (a - (sum - back)) + (b - back);
    return sum - sum == 0 ? rest : 0;
}

/* A node from two parts of normalised rows O with the logarithms of their sums: O = a O_a + b O_b.
 * -inf: a part without a key. */
typedef struct attn_join {
    double lse, a, b;
    double rest; /* that the exact logarithm has beyond lse: for sinks far above it */
} attn_join;

ATTN_CORE attn_join attn_segment_join(double lse_a, double rest_a, double lse_b, double rest_b)
{
    const double high = lse_a < lse_b ? lse_b : lse_a, low = lse_a < lse_b ? lse_a : lse_b;
    const double apart = low == -INFINITY ? -INFINITY : low - high; /* NaN for NaN */
    const double small = attn_exp_negative(apart), sum = 1 + small;
    const bool none = high == -INFINITY && low == -INFINITY, b = lse_a < lse_b;
    const double nan = high == -INFINITY ? 0 : high - high; /* of a row that is no number */
    const double more = 1 / sum + nan, less = small / sum + nan;
    const double ln = attn_ln(sum), lse = high + ln;
    attn_join join = {lse, b ? less : more, b ? more : less, attn_sum_rest(high, ln, lse)};
    join.lse = low == -INFINITY ? high : join.lse;
    join.rest = lse_b == -INFINITY ? rest_a : lse_a == -INFINITY ? rest_b : join.rest;
    join.a = none ? 0 : join.a;
    join.b = none ? 0 : join.b;
    return join;
}

#endif
