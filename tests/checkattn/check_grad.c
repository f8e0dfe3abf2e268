/*
 * check_grad.c: the members that the backward pass and dropout add (table_grad.h), but for
 * products: softmax and softcap against scalar bit for bit and against float64, dots against the
 * chains that the contract gives, dropout against core/dropout.h.
 */
#include "checks.h"
#include "core/half.h"
#include "cpu/ukernel/table_grad.h"
#include "panel.h"

#include <math.h>
#include <string.h>

/* ---- softmax, softcap, dots ------------------------------------------------------------------ */

typedef struct tile_case {
    int64_t n;
    int lanes;
    void *s, *dp, *lse, *delta, *keep;
    attn_grad_tile tile;
} tile_case;

/* Scores around lse: far below, near, a little above (as rounding may have them), masked, NaN; rows
 * without keys. */
static void fill_tile(kernel_kit *kit, tile_case *c, int64_t turn)
{
    const int64_t strip = kit->uk->strip;
    c->s = kit_reals(kit, SLOT_S, c->n * strip), c->dp = kit_reals(kit, SLOT_P, c->n * strip);
    c->lse = kit_reals(kit, SLOT_L, strip), c->delta = kit_reals(kit, SLOT_M, strip),
    c->keep = kit_reals(kit, SLOT_BIAS, c->n * strip);
    for (int64_t i = 0; i < c->n * strip; i++) {
        int64_t what = kit_choice(kit, 93, i + turn, 12);
        double x = kit_value(kit, VALUES_NORMAL, 94, i + turn, 1);
        kit_put(kit, c->s, i,
                what == 0                    ? -(double)INFINITY
                : what == 1                  ? 60 * x
                : what == 2 && turn % 5 == 0 ? (double)NAN
                                             : x);
        kit_put(kit, c->dp, i, kit_value(kit, VALUES_NORMAL, 95, i + turn, 1));
        kit_put(kit, c->keep, i, kit_choice(kit, 96, i + turn, 3) ? 1.25 : 0);
    }
    for (int64_t lane = 0; lane < strip; lane++) {
        kit_put(kit, c->lse, lane,
                (lane + turn) % 7 == 0 ? (double)INFINITY
                                       : kit_value(kit, VALUES_NORMAL, 97, lane + turn, 1));
        kit_put(kit, c->delta, lane, kit_value(kit, VALUES_NORMAL, 98, lane + turn, 1));
    }
    c->tile = (attn_grad_tile){.exponent = turn % 2 ? 0.18 : 1.4426950408889634,
                               .factor = turn % 3 ? -0.3 : 1};
    c->tile.lse = c->lse, c->tile.delta = c->delta, c->tile.keep = turn % 4 < 2 ? c->keep : NULL;
}

/* The scalar member of the same name, strip by strip, on copies. */
static void run_scalar(const kernel_kit *kit, const tile_case *c, double *s, double *dp, bool cap)
{
    static double part[5][8 * ATTN_KEY_BLOCK];
    for (int first = 0; first < kit->uk->strip; first += kit->scalar->strip) {
        attn_grad_tile narrow = c->tile;
        kit_take_lanes(kit, part[0], s, c->n, first);
        kit_take_lanes(kit, part[1], dp, c->n, first);
        kit_take_lanes(kit, part[2], c->lse, 1, first);
        kit_take_lanes(kit, part[3], c->delta, 1, first);
        kit_take_lanes(kit, part[4], c->keep, c->n, first);
        narrow.lse = part[2], narrow.delta = part[3], narrow.keep = c->tile.keep ? part[4] : NULL;
        if (cap) {
            kit->scalar->grad->softcap(part[1], part[0], c->n, 0.7, 1.3, kit->scalar->strip);
        } else {
            kit->scalar->grad->softmax(part[0], part[1], c->n, &narrow, kit->scalar->strip);
        }
        kit_give_lanes(kit, s, part[0], c->n, first);
        kit_give_lanes(kit, dp, part[1], c->n, first);
    }
}

/* What flush-to-zero takes away at most: the kernels of bf16 run with it (numerics.md). */
static double flushed(const kernel_kit *kit)
{
    return kit->uk->flushes ? 0x1p-126 : 0;
}

/* P within a few roundings, and dS as P and the inputs have it. */
static void judge_softmax(kernel_kit *kit, const tile_case *c, const double *s, const double *dp)
{
    for (int64_t i = 0; i < c->n * kit->uk->strip; i++) {
        if (i % kit->uk->strip >= c->lanes) {
            continue;
        }
        double lse = kit_get(kit, c->lse, i % kit->uk->strip),
               delta = kit_get(kit, c->delta, i % kit->uk->strip);
        double keep = c->tile.keep ? kit_get(kit, c->keep, i) : 1, u = kit_unit(kit),
               x = kit_get(kit, s, i);
        double exponent = fmin(x - lse, 0) * c->tile.exponent, p = isnan(x) ? x : exp2(exponent);
        double size = p * (fabs(kit_get(kit, dp, i)) * keep + fabs(delta)) * fabs(c->tile.factor);
        double ds = p * (kit_get(kit, dp, i) * keep - delta) * c->tile.factor,
               slack = u * (6 + 2 * fabs(exponent));
        double p_error = fabs(kit_get(kit, c->s, i) - p * keep),
               ds_error = fabs(kit_get(kit, c->dp, i) - ds);
        bool tiny = p < (kit->uk->real_size == 4 ? 0x1p-124 : 0x1p-1020);
        if (tiny || isinf(exponent)) {
            if (!(kit_get(kit, c->s, i) <= 0x1p-100 && fabs(kit_get(kit, c->dp, i)) <= 0x1p-100)) {
                kit_fail(kit, "P = %g and dS = %g for s = %g, lse = %g", kit_get(kit, c->s, i),
                         kit_get(kit, c->dp, i), x, lse);
            }
        } else if (!isnan(p) &&
                   !(p_error <= slack * p * keep && ds_error <= slack * size + flushed(kit))) {
            kit_fail(kit, "P = %.9g, exact %.9g; dS = %.9g, exact %.9g", kit_get(kit, c->s, i),
                     p * keep, kit_get(kit, c->dp, i), ds);
        } else if (isnan(p) && !(isnan(kit_get(kit, c->s, i)) && isnan(kit_get(kit, c->dp, i)))) {
            kit_fail(kit, "a NaN is lost");
        }
    }
}

/* dS is that without the factor, times the factor. */
static void judge_plain(kernel_kit *kit, const tile_case *c)
{
    for (int64_t i = 0; i < c->n * kit->uk->strip; i++) {
        double plain = kit_get(kit, c->tile.plain, i), got = kit_get(kit, c->dp, i);
        double want = kit->uk->real_size == 4 ? (double)((float)plain * (float)c->tile.factor)
                                              : plain * c->tile.factor;
        if (i % kit->uk->strip < c->lanes && got != want && !(isnan(got) && isnan(want)) &&
            !(got == 0 && fabs(want) < flushed(kit))) {
            kit_fail(kit, "plain[%lld] = %a, but dS = %a", (long long)i, plain, got);
            return;
        }
    }
}

static void one_tile(kernel_kit *kit, int64_t n, int64_t turn)
{
    static double s[ATTN_KEY_BLOCK * KIT_MOST_LANES], dp[ATTN_KEY_BLOCK * KIT_MOST_LANES];
    static double before[2][ATTN_KEY_BLOCK * KIT_MOST_LANES];
    const size_t bytes = (size_t)(n * kit->uk->strip * kit->uk->real_size);
    tile_case test = {.n = n, .lanes = kit_lanes(kit, turn)};
    fill_tile(kit, &test, turn);
    memcpy(s, test.s, bytes);
    memcpy(dp, test.dp, bytes);
    memcpy(before[0], test.s, bytes);
    memcpy(before[1], test.dp, bytes);
    kit_doing(kit, "n=%lld lanes=%d turn=%lld", (long long)n, test.lanes, (long long)turn);
    run_scalar(kit, &test, s, dp, false);
    test.tile.plain = turn % 5 < 3 ? kit_reals(kit, SLOT_OT, n * kit->uk->strip) : NULL;
    KIT_CALL(kit, kit->uk->grad->softmax(test.s, test.dp, n, &test.tile, test.lanes));
    kit_compare_lanes(kit, "P", test.s, s, n, test.lanes);
    kit_compare_lanes(kit, "dS", test.dp, dp, n, test.lanes);
    judge_softmax(kit, &test, before[0], before[1]);
    if (test.tile.plain) {
        judge_plain(kit, &test);
    }
}

void check_grad_softmax(kernel_kit *kit)
{
    kit_member(kit, "grad->softmax");
    for (int64_t turn = 0; turn < 3 * ATTN_KEY_BLOCK; turn++) {
        one_tile(kit, 1 + turn % ATTN_KEY_BLOCK, turn);
    }
}

/* 1 - tanh^2 within 12 u and 8 u for each unit of the argument; 0 is right below the least normal
 * number. */
static void one_softcap(kernel_kit *kit, int64_t n, int64_t turn)
{
    static double s[ATTN_KEY_BLOCK * KIT_MOST_LANES], dp[ATTN_KEY_BLOCK * KIT_MOST_LANES];
    static double before[ATTN_KEY_BLOCK * KIT_MOST_LANES];
    const size_t bytes = (size_t)(n * kit->uk->strip * kit->uk->real_size);
    tile_case test = {.n = n};
    fill_tile(kit, &test, turn);
    memcpy(s, test.s, bytes);
    memcpy(dp, test.dp, bytes);
    memcpy(before, test.dp, bytes);
    kit_doing(kit, "n=%lld turn=%lld", (long long)n, (long long)turn);
    run_scalar(kit, &test, s, dp, true);
    kit_lock(kit, SLOT_S);
    KIT_CALL(kit, kit->uk->grad->softcap(test.dp, test.s, n, 0.7, 1.3, kit->uk->strip));
    kit_compare(kit, "dS", test.dp, dp, n * kit->uk->strip);
    for (int64_t i = 0; i < n * kit->uk->strip; i++) {
        double x = kit_get(kit, test.s, i) * 0.7 / 1.3,
               exact = kit_get(kit, before, i) / cosh(x) / cosh(x);
        double error = fabs(kit_get(kit, test.dp, i) - exact);
        if (!isnan(x) &&
            !(error <= kit_unit(kit) * (12 + 8 * fmin(fabs(x), 1000)) * fabs(exact) + 0x1p-100)) {
            kit_fail(kit, "dS = %.9g, exact %.9g", kit_get(kit, test.dp, i), exact);
        }
    }
}

void check_grad_softcap(kernel_kit *kit)
{
    kit_member(kit, "grad->softcap");
    for (int64_t turn = 0; turn < ATTN_KEY_BLOCK; turn++) {
        one_softcap(kit, 1 + turn, turn);
    }
}

void check_grad_dots(kernel_kit *kit)
{
    kit_member(kit, "grad->dots");
    for (int i = 0; kit->same_bits && i < panel_dims_count; i++) {
        const int64_t d = panel_dims[i], strip = kit->uk->strip;
        void *a = kit_reals(kit, SLOT_K, d * strip), *b = kit_reals(kit, SLOT_QT, d * strip),
             *dots = kit_reals(kit, SLOT_L, strip);
        kit_doing(kit, "d=%lld", (long long)d);
        for (int64_t n = 0; n < d * strip; n++) {
            kit_put(kit, a, n, kit_value(kit, VALUES_NORMAL, 70, n + i, 1));
            kit_put(kit, b, n, kit_value(kit, VALUES_NORMAL, 71, n + i, 1));
        }
        kit_lock(kit, SLOT_K);
        kit_lock(kit, SLOT_QT);
        KIT_CALL(kit, kit->uk->grad->dots(dots, a, b, d));
        for (int64_t lane = 0; lane < strip; lane++) {
            double all = 0, chunk = 0;
            for (int64_t c = 0; c < d; c++) {
                chunk = kit_fused(kit, kit_get(kit, a, c * strip + lane),
                                  kit_get(kit, b, c * strip + lane), chunk);
                if (c % ATTN_DOT_CHUNK == ATTN_DOT_CHUNK - 1 || c == d - 1) {
                    all = kit_sum(kit, all, chunk), chunk = 0;
                }
            }
            if (kit_get(kit, dots, lane) != all) {
                kit_fail(kit, "lane %lld: %a, wanted %a", (long long)lane, kit_get(kit, dots, lane),
                         all);
            }
        }
    }
}

/* ---- put and drop ---------------------------------------------------------------------------- */

static void one_put(kernel_kit *kit, int64_t cols, int64_t turn)
{
    const int64_t vector = kit->uk->grad->vector, pad = (cols + vector - 1) / vector * vector,
                  n = 1 + turn % 5;
    const bool spoil = turn % 3 == 0;
    const int64_t where = kit_choice(kit, 99, turn, n * cols);
    void *g = kit_reals(kit, SLOT_OT, n * pad);
    void *target = kit_slot(kit, SLOT_TARGET, (size_t)(n * cols) * attn_dtype_size(kit->dtype));
    attn_tensor to = attn_tensor_bshd(target, (attn_dtype)kit->dtype, 1, n, 1, cols);
    bool finite;
    kit_doing(kit, "cols=%lld n=%lld turn=%lld", (long long)cols, (long long)n, (long long)turn);
    for (int64_t i = 0; i < n * pad; i++) {
        kit_put(kit, g, i, i % pad < cols ? kit_value(kit, VALUES_NORMAL, 89, i + turn, 1) : 0);
    }
    if (spoil) {
        kit_put(kit, g, where / cols * pad + where % cols,
                turn % 2 ? (double)NAN : (double)INFINITY);
    }
    if (turn % 2) { /* by columns */
        to.stride[1] = 1, to.stride[3] = n;
    }
    kit_lock(kit, SLOT_OT);
    KIT_CALL(kit, finite = kit->uk->grad->put(to.data, to.stride[1], to.stride[3], kit->dtype, g,
                                              pad, cols, n));
    if (finite == spoil) {
        kit_fail(kit, "says %d", finite);
    }
    for (int64_t i = 0; i < n * cols; i++) {
        double x = kit_get(kit, g, i / cols * pad + i % cols),
               got = panel_element(&to, i / cols, i % cols);
        uint64_t want = 0;
        attn_element_from_f64(&want, kit->dtype, x);
        if (!(got == attn_element_to_f64(&want, kit->dtype) || (isnan(x) && isnan(got)))) {
            kit_fail(kit, "element %lld: %.9g of %.9g", (long long)i, got, x);
        }
    }
}

void check_grad_put(kernel_kit *kit)
{
    int64_t turn = 0;
    kit_member(kit, "grad->put");
    for (int i = 0; i < panel_dims_count; i++) {
        for (int n = 0; n < 15; n++) {
            one_put(kit, panel_dims[i], turn++);
        }
    }
}

/* Lanes of any rows and streams, tiles that begin at any key, all p. */
void check_grad_drop(kernel_kit *kit)
{
    static const double p[] = {0x1p-40, 0.1, 0.5, 0.999, 1};
    kit_member(kit, "grad->drop");
    for (int64_t turn = 0; turn < 2 * ATTN_KEY_BLOCK; turn++) {
        const attn_dropout dropout =
            attn_dropout_make(p[turn % 5], (uint64_t)turn << 40 | 7, UINT64_MAX - 3);
        const int64_t n = 1 + turn % ATTN_KEY_BLOCK, strip = kit->uk->strip;
        attn_drop_tile t = {.dropout = &dropout,
                            .first_key = turn % 7 == 6 ? (INT64_C(1) << 33) + turn : turn};
        /* else P has a form of its own: tests/op judges it */
        const bool times = kit->same_bits && turn % 2;
        const int64_t done = times ? turn % 3 : 0;
        void *all = kit_reals(kit, SLOT_S, (done + n) * strip),
             *tile = (char *)all + done * strip * kit->uk->real_size;
        kit_doing(kit, "n=%lld turn=%lld", (long long)n, (long long)turn);
        for (int64_t i = 0; i < n * strip; i++) {
            kit_put(kit, tile, i, 0.5 + (double)(i % 64));
        }
        for (int64_t lane = 0; lane < strip; lane++) {
            t.query[lane] = (uint64_t)kit_choice(kit, 60, lane + turn, INT64_C(1) << 32);
            t.stream[lane] = attn_dropout_stream(&dropout, turn, 3, lane);
        }
        KIT_CALL(kit, kit->uk->grad->drop(all, done, n, &t, times));
        for (int64_t i = 0; i < n * strip; i++) {
            const uint32_t number =
                attn_dropout_number(&dropout, t.stream[i % strip], t.query[i % strip],
                                    (uint64_t)(t.first_key + i / strip));
            double z =
                number >= dropout.limit
                    ? (kit->uk->real_size == 4 ? (double)(float)dropout.scale : dropout.scale)
                    : 0;
            double want = times ? (0.5 + (double)(i % 64)) * z : z, got = kit_get(kit, tile, i);
            if (got != (kit->uk->real_size == 4 ? (double)(float)want : want)) {
                kit_fail(kit, "tile[%lld] = %.9g, wanted %.9g", (long long)i, got, want);
            }
        }
    }
}
