/*
 * check_pv.c: OT = OT alpha + V^T P with the packing of V: scalar's bits, and float64 within
 * gamma_(n+1) of the sum of sizes. For tables that promise scalar's bits and therefore keep P as
 * rows of reals; the form of others' P is their own business: they are checked together with their
 * softmax (check_block.c).
 */
#include "checks.h"
#include "panel.h"
#include "sums.h"

#include <math.h>
#include <string.h>

typedef struct pv_case {
    int64_t dv, n, at, pad;
    int lanes;
    attn_tensor value;
    /* real: OT as it was [pad][strip], [n][strip], [strip] or NULL */
    const void *before, *p, *alpha;
} pv_case;

static void run_scalar(const kernel_kit *kit, const pv_case *c, void *want)
{
    static double panel[KIT_MOST_KEYS * KIT_MOST_D], p[8 * KIT_MOST_KEYS], ot[8 * KIT_MOST_D],
        alpha[8];
    int narrow = kit->scalar->strip, wide = kit->uk->strip;
    attn_rows source = panel_rows(&c->value, 0);
    kit->scalar->pack_v(panel, 0, &source, c->n, c->dv, c->dv);
    for (int first = 0; first < wide; first += narrow) {
        kit_take_lanes(kit, p, c->p, c->n, first);
        kit_take_lanes(kit, alpha, c->alpha ? c->alpha : c->p, 1, first);
        kit_take_lanes(kit, ot, c->before, c->dv, first);
        kit->scalar->pv(ot, panel, 0, p, c->dv, c->n, c->alpha ? alpha : NULL, narrow);
        kit_give_lanes(kit, want, ot, c->dv, first);
    }
}

static bool judge_element(kernel_kit *kit, const pv_case *c, const void *ot, int64_t col,
                          int64_t lane)
{
    int64_t at = col * kit->uk->strip + lane;
    double x[KIT_MOST_KEYS + 1], y[KIT_MOST_KEYS + 1];
    x[0] = c->alpha ? kit_get(kit, c->before, at) : 0;
    y[0] = c->alpha ? kit_get(kit, c->alpha, lane) : 0;
    for (int64_t key = 0; key < c->n; key++) {
        x[key + 1] = kit_get(kit, c->p, key * kit->uk->strip + lane);
        y[key + 1] = panel_element(&c->value, key, col);
    }
    const exact_sum exact = exact_dot(kit, x, y, c->n + 1);
    if (!isfinite(exact.value)) {
        return true;
    }
    double bound = kit_gamma(kit, (double)c->n + 1) * exact.size;
    bound += (double)c->n * (kit->uk->real_size == 4 ? 0x1p-149 : 0x1p-1074);
    double got = kit_get(kit, ot, at), error = fabs(got - exact.value);
    if (!(error <= bound)) {
        kit_fail(kit, "OT[%lld][%lld] = %.9g, exact %.9g, bound %.3g", (long long)col,
                 (long long)lane, got, exact.value, bound);
        return false;
    }
    kit->worst_pv = fmax(kit->worst_pv, error / bound);
    return true;
}

static void judge(kernel_kit *kit, const pv_case *c, const void *ot)
{
    bool good = true;
    for (int64_t i = 0; good && i < c->dv * kit->uk->strip; i++) {
        good = i % kit->uk->strip >= c->lanes ||
               judge_element(kit, c, ot, i / kit->uk->strip, i % kit->uk->strip);
    }
}

/* ---- one case -------------------------------------------------------------------------------- */

/* count reals in [0, 1], one in nine of them 0, in a locked slot. */
static const void *make_weights(kernel_kit *kit, enum slot slot, int64_t rows, int64_t count,
                                int64_t turn)
{
    void *weights = kit_slot(kit, slot, (size_t)(rows * kit->uk->strip * kit->uk->real_size));
    for (int64_t i = 0; i < count; i++) {
        double x = (double)kit_choice(kit, (int)slot, i + turn, 1 << 20) * 0x1p-20;
        kit_put(kit, weights, i, kit_choice(kit, (int)slot + 1, i + turn, 9) == 0 ? 0 : x);
    }
    kit_lock(kit, slot);
    return weights;
}

/* NaN unless it is there to be added to. */
static void *make_ot(kernel_kit *kit, int64_t rows, int64_t turn, bool filled)
{
    void *ot = kit_slot(kit, SLOT_OT, (size_t)(rows * kit->uk->strip * kit->uk->real_size));
    for (int64_t i = 0; filled && i < rows * kit->uk->strip; i++) {
        kit_put(kit, ot, i, kit_value(kit, VALUES_NORMAL, 60, i + turn, 1));
    }
    return ot;
}

static void pack(kernel_kit *kit, void *panel, const pv_case *c)
{
    for (int64_t part = 0, first = 0; part < 2; part++) {
        int64_t count = part ? c->n - first : c->n / 3;
        attn_rows source = panel_rows(&c->value, first);
        if (count > 0) {
            KIT_CALL(kit, kit->uk->pack_v(panel, c->at + first, &source, count, c->dv, c->pad));
        }
        first += count;
    }
    kit_lock(kit, SLOT_V);
}

static void one(kernel_kit *kit, int64_t dv, int64_t n, int64_t turn)
{
    static double want[KIT_MOST_D * KIT_MOST_LANES], before[(KIT_MOST_D + 64) * KIT_MOST_LANES];
    int64_t strip = kit->uk->strip, granule = kit->uk->granule;
    enum values kind = (enum values)(turn % VALUES_KINDS);
    pv_case test = {.dv = dv, .n = n, .at = kit_choice(kit, 5, turn, kit->uk->key_block - n + 1)};
    test.lanes = kit_lanes(kit, turn);
    test.pad = (dv + granule - 1) / granule * granule;
    kit_doing(kit, "dv=%lld n=%lld at=%lld lanes=%d alpha=%d kind=%d dtype=%d turn=%lld",
              (long long)dv, (long long)n, (long long)test.at, test.lanes, turn % 5 != 2, kind,
              kit->dtype, (long long)turn);
    test.value = panel_matrix(kit, SLOT_SOURCE, n, dv, kind, panel_stride(turn));
    void *panel = kit_slot(kit, SLOT_V, kit->uk->v_bytes(test.pad)),
         *ot = make_ot(kit, test.pad, turn, turn % 5 != 2);
    memcpy(before, ot, (size_t)(test.pad * strip * kit->uk->real_size));
    test.before = before;
    test.p = make_weights(kit, SLOT_S, n, n * strip, turn);
    test.alpha = turn % 5 != 2 ? make_weights(kit, SLOT_ALPHA, 1, strip, turn) : NULL;
    pack(kit, panel, &test);
    KIT_CALL(kit, kit->uk->pv(ot, panel, test.at, test.p, test.pad, n, test.alpha, test.lanes));
    if (kit->uk != kit->scalar) {
        run_scalar(kit, &test, want);
        kit_compare_lanes(kit, "OT", ot, want, dv, test.lanes);
    }
    if (turn % 16 == 0) {
        judge(kit, &test, ot);
    }
}

void check_pv(kernel_kit *kit)
{
    int64_t turn = 0;
    kit_member(kit, "pv");
    for (int i = 0; i < panel_dims_count && kit->same_bits; i++) {
        const int64_t step = i % 4 == 1 ? PANEL_STEP_ALL : PANEL_STEP;
        for (int64_t n = 1; n <= kit->uk->key_block; n += step) {
            one(kit, panel_dims[i], n, turn++);
        }
        one(kit, panel_dims[i], kit->uk->key_block, turn++);
    }
}
