/*
 * check_nodes.c: logs, copy and join, the sums over segments of keys (core/segment.h), against long
 * double. A quotient is rounded once. A weight is off by 4 ulps of double at most (exp 1.5, its sum
 * and quotient 1, and a reserve), then rounded to real; a product and a sum follow. So an element
 * of a node is off by 3 u and 4 ulps of double of the sum of its two products.
 */
#include "checks.h"

#include <math.h>

enum { COLUMNS = 37 };

typedef struct sums {
    attn_part part;
    long double exact[KIT_MOST_LANES]; /* logarithms, as logs gave them */
} sums;

/* Every seventh lane is empty. The logarithms of neighbours are near, far, or very far. */
static sums make_sums(kernel_kit *kit, double *lse, double *rest, enum slot slot, bool divides,
                      int lanes, int64_t turn)
{
    const int64_t strip = kit->uk->strip;
    sums s = {.part = {.lse = lse, .rest = rest}};
    void *o = kit_slot(kit, slot, (size_t)(COLUMNS * strip * kit->uk->real_size));
    void *m = kit_slot(kit, SLOT_M, (size_t)(strip * kit->uk->real_size));
    void *l =
        kit_slot(kit, slot == SLOT_OT ? SLOT_L : SLOT_ALPHA, (size_t)(strip * kit->uk->real_size));
    const attn_running state = {.m = m, .l = l};
    const double unit = 0.3, size = turn % 3 == 0 ? 1 : turn % 3 == 1 ? 30 : 2000;
    for (int64_t lane = 0; lane < strip; lane++) {
        const bool empty = (lane + turn + slot) % 7 == 0 || lane >= lanes;
        const double max = size * kit_value(kit, VALUES_NORMAL, 40 + (int)slot, lane + turn, 1);
        const double sum = 1 + (double)kit_choice(kit, 60 + (int)slot, lane + turn, 2000) / 3;
        kit_put(kit, m, lane, empty ? -(double)INFINITY : max);
        kit_put(kit, l, lane, empty ? 0 : sum);
        s.exact[lane] = empty ? -(long double)INFINITY
                              : (long double)kit_get(kit, m, lane) * (long double)unit +
                                    logl((long double)kit_get(kit, l, lane));
        for (int64_t c = 0; c < COLUMNS; c++) {
            kit_put(kit, o, c * strip + lane,
                    empty ? 0 : kit_value(kit, VALUES_NORMAL, 80 + (int)slot, c * strip + lane, 1));
        }
    }
    KIT_CALL(kit, kit->uk->logs(lse, rest, &state, unit, lanes));
    for (int64_t lane = 0; lane < strip; lane++) {
        const long double got = (long double)lse[lane] + (long double)rest[lane];
        const long double error = fabsl(got - s.exact[lane]);
        if (s.exact[lane] == -(long double)INFINITY
                ? lse[lane] != -(double)INFINITY
                : !(error <= 4e-15L + 2e-16L * fabsl(s.exact[lane]))) {
            kit_fail(kit, "logarithm of lane %d = %.17g, exact %.17Lg", (int)lane, lse[lane],
                     s.exact[lane]);
        }
        s.exact[lane] = lse[lane] == -(double)INFINITY ? s.exact[lane] : got;
    }
    s.part.o = o, s.part.divisor = divides ? l : NULL;
    return s;
}

static double part_element(const kernel_kit *kit, const attn_part *part, int64_t c, int64_t lane)
{
    const double x = kit_get(kit, part->o, c * kit->uk->strip + lane);
    const double by = part->divisor ? kit_get(kit, part->divisor, lane) : 1;
    return by == 0 ? 0 : kit->uk->real_size == 4 ? (double)((float)x / (float)by) : x / by;
}

static void one_pair(kernel_kit *kit, int lanes, int64_t turn)
{
    const int64_t strip = kit->uk->strip;
    const double u = kit->uk->real_size == 4 ? 0x1p-24 : 0x1p-53;
    double lse[3][ATTN_MAX_STRIP], rest[3][ATTN_MAX_STRIP];
    kit_doing(kit, "lanes=%d turn=%lld", lanes, (long long)turn);
    const sums a = make_sums(kit, lse[0], rest[0], SLOT_OT, true, lanes, turn);
    const sums b = make_sums(kit, lse[1], rest[1], SLOT_S, turn % 2 == 0, lanes, turn);
    const attn_part node = {
        .lse = lse[2],
        .rest = rest[2],
        .o = kit_slot(kit, SLOT_TARGET, (size_t)(COLUMNS * strip * kit->uk->real_size))};
    KIT_CALL(kit, kit->uk->copy(&node, &a.part, COLUMNS, lanes));
    for (int64_t i = 0; i < COLUMNS * lanes; i++) {
        const int64_t c = i / lanes, lane = i % lanes;
        if (kit_get(kit, node.o, c * strip + lane) != part_element(kit, &a.part, c, lane)) {
            kit_fail(kit, "copy of column %d, lane %d", (int)c, (int)lane);
            return;
        }
    }
    KIT_CALL(kit, kit->uk->join(&node, &b.part, COLUMNS, lanes));
    for (int64_t lane = 0; lane < lanes; lane++) {
        const long double top = fmaxl(a.exact[lane], b.exact[lane]);
        const bool none = top == -(long double)INFINITY;
        const long double x = none ? 0 : expl(a.exact[lane] - top),
                          y = none ? 0 : expl(b.exact[lane] - top);
        const long double exact = none ? top : top + logl(x + y);
        if (none ? lse[2][lane] != -(double)INFINITY
                 : !(fabsl((long double)lse[2][lane] - exact) <= 3e-16L * (10 + fabsl(exact)))) {
            kit_fail(kit, "joined logarithm of lane %d = %.17g, exact %.17Lg", (int)lane,
                     lse[2][lane], exact);
        }
        for (int64_t c = 0; c < COLUMNS; c++) {
            const long double first =
                none ? 0 : x / (x + y) * (long double)part_element(kit, &a.part, c, lane);
            const long double second =
                none ? 0 : y / (x + y) * (long double)part_element(kit, &b.part, c, lane);
            const double got = kit_get(kit, node.o, c * strip + lane);
            /* and what the difference of two logarithms of this size loses */
            const long double most =
                (3 * (long double)u + 4 * 0x1p-52L + 4e-16L * (none ? 0 : fabsl(top))) *
                (fabsl(first) + fabsl(second));
            if (!(fabsl((long double)got - (first + second)) <= most)) {
                kit_fail(kit, "column %d of lane %d = %.9g, exact %.9Lg", (int)c, (int)lane, got,
                         first + second);
                return;
            }
        }
    }
}

void check_nodes(kernel_kit *kit)
{
    kit_member(kit, "logs, copy, join");
    for (int64_t turn = 0; turn < 60; turn++) {
        one_pair(kit, 1 + (int)(turn * 7 % kit->uk->strip), turn);
    }
}
