/*
 * check_pv.c: OT = OT alpha + V^T P with the packing of V: scalar's bits, and float64 within
 * gamma_(n+1) of the sum of sizes. For tables that promise scalar's bits and therefore keep P as
 * rows of reals; the form of others' P is their own business: they are checked together with their
 * softmax (check_block.c).
 */
#include "checks.h"
#include "panel.h"

#include <math.h>
#include <string.h>

typedef struct pv_case {
    int64_t dv, n, at, pad;
    int lanes;
    attn_tensor value;
    /* real: OT as it was [pad][strip], [n][strip], [strip] or NULL */
    const void *before, *p, *alpha;
    const unsigned char *visible; /* NULL: pv, else pv_careful */
} pv_case;

static void run_scalar(const kit *k, const pv_case *c, void *want)
{
    static double panel[KIT_MOST_KEYS * KIT_MOST_D], p[8 * KIT_MOST_KEYS], ot[8 * KIT_MOST_D],
        alpha[8];
    static unsigned char visible[8 * KIT_MOST_KEYS];
    int narrow = k->scalar->strip, wide = k->uk->strip;
    attn_rows source = panel_rows(&c->value, 0);
    k->scalar->pack_v(panel, 0, &source, c->n, c->dv, c->dv);
    for (int first = 0; first < wide; first += narrow) {
        kit_take_lanes(k, p, c->p, c->n, first);
        kit_take_lanes(k, alpha, c->alpha ? c->alpha : c->p, 1, first);
        kit_take_lanes(k, ot, c->before, c->dv, first);
        for (int64_t i = 0; c->visible && i < c->n * narrow; i++) {
            int64_t lane = first + i % narrow;
            visible[i] = c->visible[i / narrow * wide + (lane < wide ? lane : wide - 1)];
        }
        if (c->visible) {
            k->scalar->pv_careful(ot, panel, 0, p, c->dv, c->n, c->alpha ? alpha : NULL, visible,
                                  narrow);
        } else {
            k->scalar->pv(ot, panel, 0, p, c->dv, c->n, c->alpha ? alpha : NULL, narrow);
        }
        kit_give_lanes(k, want, ot, c->dv, first);
    }
}

static bool judge_element(kit *k, const pv_case *c, const void *ot, int64_t col, int64_t lane)
{
    int64_t at = col * k->uk->strip + lane;
    long double exact =
        c->alpha ? (long double)kit_get(k, c->before, at) * (long double)kit_get(k, c->alpha, lane)
                 : 0;
    long double size = fabsl(exact);
    for (int64_t key = 0; key < c->n; key++) {
        if (!c->visible || c->visible[key * k->uk->strip + lane]) {
            long double x = (long double)kit_get(k, c->p, key * k->uk->strip + lane);
            x *= (long double)panel_element(&c->value, key, col);
            exact += x, size += fabsl(x);
        }
    }
    if (!isfinite((double)exact)) {
        return true;
    }
    double bound = kit_gamma(k, (double)c->n + 1) * (double)size;
    bound += (double)c->n * (k->uk->real_size == 4 ? 0x1p-149 : 0x1p-1074);
    double got = kit_get(k, ot, at), error = fabs(got - (double)exact);
    if (!(error <= bound)) {
        kit_fail(k, "OT[%lld][%lld] = %.9g, exact %.9g, bound %.3g", (long long)col,
                 (long long)lane, got, (double)exact, bound);
        return false;
    }
    k->worst_pv = fmax(k->worst_pv, error / bound);
    return true;
}

static void judge(kit *k, const pv_case *c, const void *ot)
{
    bool good = true;
    for (int64_t i = 0; good && i < c->dv * k->uk->strip; i++) {
        good = i % k->uk->strip >= c->lanes ||
               judge_element(k, c, ot, i / k->uk->strip, i % k->uk->strip);
    }
}

/* ---- one case -------------------------------------------------------------------------------- */

/* count reals in [0, 1], one in nine of them 0, in a locked slot. */
static const void *make_weights(kit *k, enum slot slot, int64_t rows, int64_t count, int64_t turn)
{
    void *weights = kit_slot(k, slot, (size_t)(rows * k->uk->strip * k->uk->real_size));
    for (int64_t i = 0; i < count; i++) {
        double x = (double)kit_choice(k, (int)slot, i + turn, 1 << 20) * 0x1p-20;
        kit_put(k, weights, i, kit_choice(k, (int)slot + 1, i + turn, 9) == 0 ? 0 : x);
    }
    kit_lock(k, slot);
    return weights;
}

static const unsigned char *make_visible(kit *k, int64_t n, int64_t turn)
{
    unsigned char *visible = kit_slot(k, SLOT_VISIBLE, (size_t)(n * k->uk->strip));
    for (int64_t i = 0; i < n * k->uk->strip; i++) {
        visible[i] = kit_choice(k, 4, i + turn, 3) != 0;
    }
    kit_lock(k, SLOT_VISIBLE);
    return visible;
}

/* NaN unless it is there to be added to. */
static void *make_ot(kit *k, int64_t rows, int64_t turn, bool filled)
{
    void *ot = kit_slot(k, SLOT_OT, (size_t)(rows * k->uk->strip * k->uk->real_size));
    for (int64_t i = 0; filled && i < rows * k->uk->strip; i++) {
        kit_put(k, ot, i, kit_value(k, VALUES_NORMAL, 60, i + turn, 1));
    }
    return ot;
}

static void pack(kit *k, void *panel, const pv_case *c)
{
    for (int64_t part = 0, first = 0; part < 2; part++) {
        int64_t count = part ? c->n - first : c->n / 3;
        attn_rows source = panel_rows(&c->value, first);
        if (count > 0) {
            KIT_CALL(k, k->uk->pack_v(panel, c->at + first, &source, count, c->dv, c->pad));
        }
        first += count;
    }
    kit_lock(k, SLOT_V);
}

static void one(kit *k, int64_t dv, int64_t n, int64_t turn, bool careful)
{
    static double want[KIT_MOST_D * KIT_MOST_LANES], before[(KIT_MOST_D + 64) * KIT_MOST_LANES];
    int64_t strip = k->uk->strip, granule = k->uk->granule;
    enum values kind = (enum values)(turn % VALUES_KINDS);
    pv_case c = {.dv = dv, .n = n, .at = kit_choice(k, 5, turn, k->uk->key_block - n + 1)};
    c.lanes = kit_lanes(k, turn);
    c.pad = (dv + granule - 1) / granule * granule;
    kit_doing(k, "dv=%lld n=%lld at=%lld lanes=%d alpha=%d kind=%d dtype=%d turn=%lld",
              (long long)dv, (long long)n, (long long)c.at, c.lanes, turn % 5 != 2, kind, k->dtype,
              (long long)turn);
    c.value = panel_matrix(k, SLOT_SOURCE, n, dv, kind, panel_stride(turn));
    void *panel = kit_slot(k, SLOT_V, k->uk->v_bytes(c.pad)),
         *ot = make_ot(k, c.pad, turn, turn % 5 != 2);
    memcpy(before, ot, (size_t)(c.pad * strip * k->uk->real_size));
    c.before = before;
    c.p = make_weights(k, SLOT_S, n, n * strip, turn);
    c.alpha = turn % 5 != 2 ? make_weights(k, SLOT_ALPHA, 1, strip, turn) : NULL;
    c.visible = careful ? make_visible(k, n, turn) : NULL;
    pack(k, panel, &c);
    if (careful) {
        KIT_CALL(k, k->uk->pv_careful(ot, panel, c.at, c.p, c.pad, n, c.alpha, c.visible, c.lanes));
    } else {
        KIT_CALL(k, k->uk->pv(ot, panel, c.at, c.p, c.pad, n, c.alpha, c.lanes));
    }
    if (k->uk != k->scalar) {
        run_scalar(k, &c, want);
        kit_compare_lanes(k, "OT", ot, want, dv, c.lanes);
    }
    if (turn % 16 == 0) {
        judge(k, &c, ot);
    }
}

static void run(kit *k, bool careful)
{
    int64_t turn = 0;
    for (int i = 0; i < panel_dims_count && k->same_bits; i++) {
        int64_t step = careful ? 13 : i % 4 == 1 ? 1 : 7;
        for (int64_t n = 1; n <= k->uk->key_block; n += step) {
            one(k, panel_dims[i], n, turn++, careful);
        }
        one(k, panel_dims[i], k->uk->key_block, turn++, careful);
    }
}

void check_pv(kit *k)
{
    kit_member(k, "pv");
    run(k, false);
}

void check_pv_careful(kit *k)
{
    kit_member(k, "pv_careful");
    run(k, true);
}
