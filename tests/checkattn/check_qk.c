/*
 * check_qk.c: S = K QT with the packing of both: scalar's bits, and float64 within gamma_n sum |q
 * k|, where n counts the roundings of a chain of ATTN_DOT_CHUNK products and of adding the chunks.
 */
#include "checks.h"
#include "panel.h"

#include <math.h>

typedef struct qk_case {
    int64_t d, n, at;
    int lanes;
    double factor;
    attn_tensor q, key;
    const void *rows[KIT_MOST_LANES]; /* of q, some NULL */
} qk_case;

static void run_scalar(const kit *k, const qk_case *c, void *want)
{
    static double panel[KIT_MOST_KEYS * KIT_MOST_D], qt[8 * KIT_MOST_D], s[8 * KIT_MOST_KEYS];
    attn_rows source = panel_rows(&c->key, 0);
    k->scalar->pack_k(panel, 0, &source, c->n, c->d);
    for (int first = 0; first < k->uk->strip; first += k->scalar->strip) {
        const void *rows[8] = {NULL};
        for (int lane = 0; lane < k->scalar->strip && first + lane < k->uk->strip; lane++) {
            rows[lane] = c->rows[first + lane];
        }
        k->scalar->pack_q(qt, rows, c->q.stride[3], k->dtype, c->d, c->factor, k->scalar->strip);
        k->scalar->qk(s, panel, 0, qt, c->d, c->n, k->scalar->strip);
        kit_give_lanes(k, want, s, c->n, first);
    }
}

/* One score against float64; false once it is beyond the bound. Where infinities come in, scalar's
 * bits decide. */
static bool judge_score(kit *k, const qk_case *c, const void *s, int64_t key, int64_t lane,
                        double gamma)
{
    bool single = k->uk->real_size == 4;
    long double exact = 0, size = 0;
    for (int64_t i = 0; i < c->d && c->rows[lane]; i++) {
        long double x = (long double)(c->factor * panel_element(&c->q, lane, i));
        x *= (long double)panel_element(&c->key, key, i);
        exact += x, size += fabsl(x);
    }
    if (!isfinite((double)exact) || (double)size > (single ? 1e38 : 1e300)) {
        return true;
    }
    double got = kit_get(k, s, key * k->uk->strip + lane), error = fabs(got - (double)exact);
    /* results below the smallest normal lose up to half of the smallest subnormal each */
    double bound = gamma * (double)size + (double)c->d * (single ? 0x1p-149 : 0x1p-1074);
    if (!(error <= bound)) {
        kit_fail(k, "S[%lld][%lld] = %.9g, exact %.9g, bound %.3g", (long long)key, (long long)lane,
                 got, (double)exact, bound);
        return false;
    }
    k->worst_qk = fmax(k->worst_qk, error / bound);
    return true;
}

static void judge(kit *k, const qk_case *c, const void *s)
{
    double chunks = ceil((double)c->d / ATTN_DOT_CHUNK), chain = fmin((double)c->d, ATTN_DOT_CHUNK);
    double gamma =
        k->uk->losses.inputs + kit_gamma(k, k->same_bits ? chain + chunks : 4 * (double)c->d + 16);
    bool good = true;
    for (int64_t i = 0; good && i < c->n * k->uk->strip; i++) {
        good = i % k->uk->strip >= c->lanes ||
               judge_score(k, c, s, i / k->uk->strip, i % k->uk->strip, gamma);
    }
}

/* The keys in two parts, so that a part starts anywhere in the panel. */
static void pack(kit *k, void *panel, const qk_case *c)
{
    for (int64_t part = 0, first = 0; part < 2; part++) {
        int64_t count = part ? c->n - first : c->n / 3;
        attn_rows source = panel_rows(&c->key, first);
        if (count > 0) {
            KIT_CALL(k, k->uk->pack_k(panel, c->at + first, &source, count, c->d));
        }
        first += count;
    }
    kit_lock(k, SLOT_K);
}

/* Where rows are panels, nothing lies behind the last one. */
static size_t panel_bytes(const kit *k, const qk_case *c)
{
    return k->uk->rows_are_panels ? (size_t)((c->at + c->n) * c->d * k->uk->real_size)
                                  : k->uk->k_bytes(c->d);
}

static void one(kit *k, int64_t d, int64_t n, int64_t turn)
{
    static double want[KIT_MOST_KEYS * KIT_MOST_LANES];
    enum values kind = (enum values)(turn % VALUES_KINDS);
    int64_t strip = k->uk->strip, block = k->uk->key_block;
    qk_case c = {
        .d = d, .n = n, .at = kit_choice(k, 1, turn, block - n + 1), .lanes = kit_lanes(k, turn)};
    c.factor = turn % 7 == 6 ? -1 : turn % 11 == 10 ? 0 : 1;
    kit_doing(k, "d=%lld n=%lld at=%lld lanes=%d kind=%d dtype=%d factor=%g turn=%lld",
              (long long)d, (long long)n, (long long)c.at, c.lanes, kind, k->dtype, c.factor,
              (long long)turn);
    c.q = panel_matrix(k, SLOT_SOURCE, strip, d, kind, panel_stride(turn));
    c.key = panel_matrix(k, SLOT_SOURCE_2, n, d, kind == VALUES_SPECIAL ? VALUES_NORMAL : kind,
                         panel_stride(turn / 5));
    for (int64_t lane = 0; lane < strip; lane++) {
        c.rows[lane] =
            lane >= c.lanes || (turn % 4 == 3 && lane % 5 == 4) ? NULL : panel_row(&c.q, lane);
    }
    void *panel = kit_slot(k, SLOT_K, panel_bytes(k, &c)),
         *qt = kit_slot(k, SLOT_QT, k->uk->q_bytes(d));
    void *s = kit_slot(k, SLOT_S, (size_t)(k->uk->key_tile * strip * k->uk->real_size));
    pack(k, panel, &c);
    KIT_CALL(k, k->uk->pack_q(qt, c.rows, c.q.stride[3], k->dtype, d, c.factor, c.lanes));
    kit_lock(k, SLOT_QT);
    KIT_CALL(k, k->uk->qk(s, panel, c.at, qt, d, n, c.lanes));
    if (k->same_bits && k->uk != k->scalar) {
        run_scalar(k, &c, want);
        kit_compare_lanes(k, "S", s, want, n, c.lanes);
    }
    if (turn % 16 == 0 || !k->same_bits) {
        judge(k, &c, s);
    }
}

/* Every n with a few d, every d with a few n, and all kinds of inputs in turn. */
void check_qk(kit *k)
{
    int64_t turn = 0;
    kit_member(k, "qk");
    for (int i = 0; i < panel_dims_count; i++) {
        for (int64_t n = 1; n <= k->uk->key_tile; n += i % 4 == 1 ? 1 : 7) {
            one(k, panel_dims[i], n, turn++);
        }
        one(k, panel_dims[i], k->uk->key_tile, turn++);
    }
}
