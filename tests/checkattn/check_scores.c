/*
 * check_scores.c: the members that work on a tile of scores: softmax, score and mask, against
 * scalar bit for bit and, for the softmax, against float64 within a few roundings of the exponent.
 */
#include "checks.h"

#include <math.h>
#include <string.h>

/* Kinds of tiles beyond those of kit.h. */
enum tile {
    TILE_MASKED = VALUES_KINDS,
    TILE_ONE_NAN,
    TILE_ONE_INF,
    TILE_ONE_MINUS_INF,
    TILE_FALLING,
    TILE_KINDS
};

static double tile_value(const kernel_kit *kit, int kind, int64_t i, int64_t n, int64_t strip,
                         int64_t turn)
{
    bool one = i / strip == turn % n && i % strip == turn % strip;
    double x = 3 * kit_value(kit, VALUES_NORMAL, 80, i + turn, 1);
    switch (kind) {
    case TILE_MASKED: /* all of some lanes, a third of others */
        return i % strip % 3 == 0 || kit_choice(kit, 81, i + turn, 3) == 0 ? -(double)INFINITY : x;
    case TILE_ONE_NAN:
        return one ? (double)NAN : x;
    case TILE_ONE_INF:
        return one ? (double)INFINITY : x;
    case TILE_ONE_MINUS_INF:
        return one ? -(double)INFINITY : x;
    case TILE_FALLING: /* exponents on both sides of the least one that counts */
        return -(double)(i / strip) * 3.7 - (double)(i % strip) * 0.9;
    default:
        return kit_value(kit, (enum values)kind, 82, i + turn, n * strip);
    }
}

/* n rows of scores in a slot of `rows`. */
static void *make_tile(kernel_kit *kit, int kind, int64_t rows, int64_t n, int64_t turn)
{
    int64_t strip = kit->uk->strip;
    void *s = kit_slot(kit, SLOT_S, (size_t)(rows * strip * kit->uk->real_size));
    for (int64_t i = 0; i < n * strip; i++) {
        kit_put(kit, s, i, tile_value(kit, kind, i, n, strip, turn));
    }
    return s;
}

/* ---- softmax --------------------------------------------------------------------------------- */

/* The state before: nothing seen, something seen, a maximum above all or below all that comes. */
static void make_state(kernel_kit *kit, double *m, double *l, int64_t turn)
{
    for (int lane = 0; lane < kit->uk->strip; lane++) {
        int64_t kind = (turn + lane) % 4;
        double x = kit_value(kit, VALUES_NORMAL, 83, lane + turn, 1);
        kit_put(kit, m, lane, kind == 0 ? -(double)INFINITY : kind == 1 ? x : kind == 2 ? 50 : -50);
        kit_put(kit, l, lane, kind == 0 ? 0 : 1 + fabs(x));
    }
}

typedef struct softmax_case {
    int64_t n;
    double c;
    /* reals */
    double s[KIT_MOST_KEYS * KIT_MOST_LANES], m[KIT_MOST_LANES], l[KIT_MOST_LANES],
        alpha[KIT_MOST_LANES];
} softmax_case;

static void run_scalar_softmax(const kernel_kit *kit, softmax_case *test)
{
    static double s[8 * KIT_MOST_KEYS], m[8], l[8], alpha[8];
    for (int first = 0; first < kit->uk->strip; first += kit->scalar->strip) {
        kit_take_lanes(kit, s, test->s, test->n, first);
        kit_take_lanes(kit, m, test->m, 1, first);
        kit_take_lanes(kit, l, test->l, 1, first);
        kit->scalar->softmax(s, 0, s, test->n, test->c,
                             &(attn_running){.m = m, .l = l, .alpha = alpha, .top = m},
                             kit->scalar->strip);
        kit_give_lanes(kit, test->s, s, test->n, first);
        kit_give_lanes(kit, test->m, m, 1, first);
        kit_give_lanes(kit, test->l, l, 1, first);
        kit_give_lanes(kit, test->alpha, alpha, 1, first);
    }
}

/* p = 2^((s - m) c) within 2 u, and u for each unit of the exponent, whose difference and product
 * are rounded; 0 is right below the smallest normal number. */
static void judge_probability(kernel_kit *kit, double s, double m, double c, double p)
{
    double least = kit->uk->real_size == 4 ? 0x1p-124 : 0x1p-1020, exponent = (s - m) * c;
    long double exact = exp2l((long double)exponent);
    double error = fabs(p - (double)exact),
           bound = kit_unit(kit) * (2 + fabs(exponent)) * (double)exact;
    if (isfinite(m) && !isnan(s) && !(error <= bound) && !(p == 0 && (double)exact < least)) {
        kit_fail(kit, "2^((%.9g - %.9g) %.9g) = %.9g, exact %.9g", s, m, c, p, (double)exact);
    }
}

/* The first part of each P, a bf16, is never subnormal: exponentials below 2^-126 are 0 by
 * comparison or, where the table counts on it, because its caller has set flush-to-zero. */
static void judge_flushed(kernel_kit *kit, const uint16_t *p, int64_t n)
{
    for (int64_t i = 0; i < n / 2 * 2 * kit->uk->strip; i++) {
        if ((p[i] & 0x7f80) == 0 && (p[i] & 0x7f) != 0) {
            kit_fail(kit, "P[%lld] = 0x%04x is subnormal", (long long)i, p[i]);
            return;
        }
    }
}

/* Tables whose reference lags: it does not fall, and is below the maximum by no more than 2^8 in
 * probabilities, unless a score is NaN: then the lane's sums are NaN with any reference. */
static void judge_reference(kernel_kit *kit, const softmax_case *test, const void *m,
                            const void *top, int lanes)
{
    for (int64_t lane = 0; lane < lanes; lane++) {
        double old = kit_get(kit, test->m, lane), new = kit_get(kit, m, lane), most = old;
        bool judged = true;
        for (int64_t key = 0; key < test->n; key++) {
            const double s = kit_get(kit, test->s, key * kit->uk->strip + lane);
            most = s > most ? s : most;
            judged &= !isnan(s);
        }
        judged &= isfinite(most) != 0;
        if (kit_get(kit, top, lane) != most || new < old ||
            (judged && (most - new) * test->c > 8.001)) {
            kit_fail(kit, "lane %lld: reference %g, before %g; maximum %g, is said to be %g",
                     (long long)lane, new, old, most, kit_get(kit, top, lane));
            return;
        }
    }
}

static void one_softmax(kernel_kit *kit, int kind, int64_t n, int64_t turn)
{
    static const double exponents[] = {1.4426950408889634, 0.18033688011112042, 1, 1e-4, 40};
    static softmax_case want;
    static double before[KIT_MOST_KEYS * KIT_MOST_LANES];
    const int lanes = kit_lanes(kit, turn);
    size_t row = (size_t)(kit->uk->strip * kit->uk->real_size), tile = (size_t)n * row;
    void *s = make_tile(kit, kind, kit->uk->key_tile, n, turn), *m = kit_slot(kit, SLOT_M, row),
         *l = kit_slot(kit, SLOT_L, row);
    void *alpha = kit_slot(kit, SLOT_ALPHA, row),
         *top = kit->uk->lags ? kit_slot(kit, SLOT_TOP, row) : m, *p = s;
    want.n = n, want.c = exponents[turn % 5];
    kit_doing(kit, "kind=%d n=%lld lanes=%d c=%g turn=%lld", kind, (long long)n, lanes, want.c,
              (long long)turn);
    make_state(kit, want.m, want.l, turn);
    memcpy(m, want.m, row);
    memcpy(top, want.m, row);
    memcpy(l, want.l, row);
    memcpy(want.s, s, tile);
    memcpy(before, s, tile);
    if (kit->uk->p_bytes() > 0) {
        p = kit_slot(kit, SLOT_P, kit->uk->p_bytes());
    }
    KIT_CALL(kit,
             kit->uk->softmax(p, 0, s, n, want.c,
                              &(attn_running){.m = m, .l = l, .alpha = alpha, .top = top}, lanes));
    if (!kit->same_bits) {
        judge_flushed(kit, p, n);
        judge_reference(kit, &want, m, top, lanes);
        return; /* p is in a form of its own: check_block.c */
    }
    run_scalar_softmax(kit, &want);
    kit_compare_lanes(kit, "P", p, want.s, n, lanes);
    kit_compare_lanes(kit, "m", m, want.m, 1, lanes);
    kit_compare_lanes(kit, "l", l, want.l, 1, lanes);
    kit_compare_lanes(kit, "alpha", alpha, want.alpha, 1, lanes);
    for (int64_t i = 0; i < n * kit->uk->strip; i++) {
        int64_t lane = i % kit->uk->strip;
        if (lane < lanes) {
            judge_probability(kit, kit_get(kit, before, i), kit_get(kit, m, lane), want.c,
                              kit_get(kit, p, i));
        }
    }
}

void check_softmax(kernel_kit *kit)
{
    int64_t turn = 0;
    kit_member(kit, "softmax");
    for (int kind = 0; kind < TILE_KINDS; kind++) {
        for (int64_t n = 1; n <= kit->uk->key_tile; n++) {
            one_softmax(kit, kind, n, turn++);
        }
    }
}

/* ---- score and mask -------------------------------------------------------------------------- */

/* Runs score or mask of the table and of scalar on the same tile. */
static void compare_tile(kernel_kit *kit, void *s, int64_t n, int lanes, const attn_score_tile *t,
                         const void *lo, const void *hi)
{
    static double want[KIT_MOST_KEYS * KIT_MOST_LANES], part[8 * KIT_MOST_KEYS],
        bias[8 * KIT_MOST_KEYS], lane[2][8];
    memcpy(want, s, (size_t)(n * kit->uk->strip * kit->uk->real_size));
    for (int first = 0; first < kit->uk->strip; first += kit->scalar->strip) {
        kit_take_lanes(kit, part, want, n, first);
        if (t != NULL) {
            attn_score_tile narrow = *t;
            kit_take_lanes(kit, bias, t->bias ? t->bias : want, n, first);
            kit_take_lanes(kit, lane[0], t->slope ? t->slope : want, 1, first);
            kit_take_lanes(kit, lane[1], t->slope ? t->distance : want, 1, first);
            narrow.bias = t->bias ? bias : NULL;
            narrow.slope = t->slope ? lane[0] : NULL;
            narrow.distance = lane[1];
            kit->scalar->score(part, n, &narrow, kit->scalar->strip);
        } else {
            kit_take_lanes(kit, lane[0], lo, 1, first);
            kit_take_lanes(kit, lane[1], hi, 1, first);
            kit->scalar->mask(part, n, lane[0], lane[1], kit->scalar->strip);
        }
        kit_give_lanes(kit, want, part, n, first);
    }
    if (t != NULL) {
        KIT_CALL(kit, kit->uk->score(s, n, t, lanes));
    } else {
        KIT_CALL(kit, kit->uk->mask(s, n, lo, hi, lanes));
    }
    kit_compare_lanes(kit, "S", s, want, n, lanes);
}

static void *make_lanes(kernel_kit *kit, enum slot slot, int64_t range, int64_t turn)
{
    void *lanes = kit_slot(kit, slot, (size_t)(kit->uk->strip * kit->uk->real_size));
    for (int lane = 0; lane < kit->uk->strip; lane++) {
        kit_put(kit, lanes, lane, (double)(kit_choice(kit, (int)slot, lane + turn, range)));
    }
    kit_lock(kit, slot);
    return lanes;
}

static void one_score(kernel_kit *kit, int kind, int64_t n, int64_t turn)
{
    void *s = make_tile(kit, kind, n, n, turn),
         *bias = kit_slot(kit, SLOT_BIAS, (size_t)(n * kit->uk->strip * kit->uk->real_size));
    const int lanes = kit_lanes(kit, turn / 3);
    attn_score_tile t = {.scale = turn % 3 ? 0.125 : 1.7};
    for (int64_t i = 0; i < n * kit->uk->strip; i++) {
        int64_t what = kit_choice(kit, 85, i + turn, 40);
        kit_put(kit, bias, i,
                what == 0                    ? -(double)INFINITY
                : what == 1 && turn % 9 == 0 ? (double)INFINITY
                                             : kit_value(kit, VALUES_NORMAL, 86, i, 1));
    }
    kit_lock(kit, SLOT_BIAS);
    t.softcap = turn & 1 ? (turn & 8 ? 30 : 0.7) : 0;
    t.bias = turn & 2 ? bias : NULL;
    if (turn & 4) {
        t.slope = make_lanes(kit, SLOT_LO, 5, turn);
        t.distance = make_lanes(kit, SLOT_HI, 100, turn);
    }
    kit_doing(kit, "kind=%d n=%lld lanes=%d softcap=%g bias=%d slope=%d turn=%lld", kind,
              (long long)n, lanes, t.softcap, t.bias != NULL, t.slope != NULL, (long long)turn);
    compare_tile(kit, s, n, lanes, &t, NULL, NULL);
}

void check_score(kernel_kit *kit)
{
    int64_t turn = 0;
    kit_member(kit, "score");
    for (int kind = 0; kind < TILE_KINDS; kind++) {
        for (int64_t n = 1; n <= kit->uk->key_tile; n++) {
            one_score(kit, kind, n, turn++);
        }
    }
}

/* Bounds before, in and after the tile, empty ones too. */
void check_mask(kernel_kit *kit)
{
    kit_member(kit, "mask");
    for (int64_t n = 1; n <= kit->uk->key_tile; n++) {
        for (int kind = 0; kind < TILE_KINDS; kind++) {
            void *s = make_tile(kit, kind, n, n, n);
            void *lo = make_lanes(kit, SLOT_LO, n + 1, n + kind),
                 *hi = make_lanes(kit, SLOT_HI, n + 1, 7 * n + kind);
            int lanes = kit_lanes(kit, n + kind);
            kit_doing(kit, "kind=%d n=%lld lanes=%d", kind, (long long)n, lanes);
            compare_tile(kit, s, n, lanes, NULL, lo, hi);
        }
    }
}
