/*
 * check_block.c: softmax and pv of one block together, O = OT / l, against float64: for every table, whatever form its
 * probabilities have. The bound is gamma of the additions, or the rounding of each p where P has 16 bits.
 */
#include "checks.h"
#include "panel.h"

#include <math.h>

typedef struct block {
    int64_t n, dv;
    attn_tensor value;
    double s[KIT_MOST_KEYS * KIT_MOST_LANES]; /* scores, times log2(e) exponents */
} block;

/* The probabilities of one lane; their sum. */
static long double lane_weights(const kit *k, const block *b, int64_t lane, long double *p)
{
    double top = -(double)INFINITY;
    long double sum = 0;
    for (int64_t key = 0; key < b->n; key++) {
        top = fmax(top, b->s[key * k->uk->strip + lane]);
    }
    for (int64_t key = 0; key < b->n; key++) {
        p[key] = expl((long double)b->s[key * k->uk->strip + lane] - (long double)top);
        sum += p[key];
    }
    return sum;
}

static bool judge_lane(kit *k, const block *b, int64_t lane, const void *ot, double l, double relative)
{
    static long double p[KIT_MOST_KEYS];
    long double sum = lane_weights(k, b, lane, p);
    for (int64_t col = 0; col < b->dv; col++) {
        long double exact = 0, size = 0;
        for (int64_t key = 0; key < b->n; key++) {
            long double x = p[key] * (long double)panel_element(&b->value, key, col);
            exact += x, size += fabsl(x);
        }
        double got = kit_get(k, ot, col * k->uk->strip + lane) / l, error = fabs(got - (double)(exact / sum));
        if (!(error <= relative * (double)(size / sum))) {
            kit_fail(k, "O[%lld][%lld] = %.9g, exact %.9g", (long long)col, (long long)lane, got,
                     (double)(exact / sum));
            return false;
        }
    }
    return true;
}

static void judge(kit *k, const block *b, const void *ot, const void *l)
{
    double relative = k->uk->p_bytes() > 0 && k->dtype == ATTN_BF16 ? 0x1p-8 : 0;
    relative += kit_gamma(k, 2 * (double)b->n + 40);
    bool good = true;
    for (int64_t lane = 0; good && lane < k->uk->strip; lane++) {
        good = judge_lane(k, b, lane, ot, kit_get(k, l, lane), relative);
    }
}

static void one(kit *k, int64_t dv, int64_t n, int64_t turn)
{
    static block b;
    int64_t strip = k->uk->strip, granule = k->uk->granule, pad = (dv + granule - 1) / granule * granule;
    size_t real = (size_t)k->uk->real_size, lanes = (size_t)strip * real, rows = (size_t)k->uk->key_block;
    b.n = n, b.dv = dv;
    b.value = panel_matrix(k, SLOT_SOURCE, n, dv, VALUES_NORMAL, panel_stride(turn));
    void *s = kit_slot(k, SLOT_S, rows * lanes), *p = s, *panel = kit_slot(k, SLOT_V, k->uk->v_bytes(pad));
    void *m = kit_slot(k, SLOT_M, lanes), *l = kit_slot(k, SLOT_L, lanes), *alpha = kit_slot(k, SLOT_ALPHA, lanes);
    void *ot = kit_slot(k, SLOT_OT, (size_t)pad * lanes);
    for (int64_t i = 0; i < n * strip; i++) {
        kit_put(k, s, i, 2 * kit_value(k, VALUES_NORMAL, 70, i + turn, 1));
        b.s[i] = kit_get(k, s, i);
    }
    for (int64_t i = 0; i < strip; i++) {
        kit_put(k, m, i, -(double)INFINITY);
        kit_put(k, l, i, 0);
    }
    for (int64_t i = 0; i < pad * strip; i++) {
        kit_put(k, ot, i, 0);
    }
    for (size_t i = 0; i < k->uk->v_bytes(pad); i++) { /* keys beyond n have weight 0: they must be finite */
        ((unsigned char *)panel)[i] = 0;
    }
    p = k->uk->p_bytes() > 0 ? kit_slot(k, SLOT_P, k->uk->p_bytes()) : s;
    attn_rows source = panel_rows(&b.value, 0);
    kit_doing(k, "dv=%lld n=%lld dtype=%d turn=%lld", (long long)dv, (long long)n, k->dtype, (long long)turn);
    KIT_CALL(k, k->uk->pack_v(panel, 0, &source, n, dv, pad));
    KIT_CALL(k, k->uk->softmax(p, s, n, 1.4426950408889634, m, l, alpha));
    KIT_CALL(k, k->uk->pv(ot, panel, 0, p, pad, n, alpha));
    judge(k, &b, ot, l);
}

void check_block(kit *k)
{
    int64_t turn = 0;
    kit_member(k, "block");
    for (int i = 0; i < panel_dims_count; i += 3) {
        for (int64_t n = 1; n <= k->uk->key_block; n += 21) {
            one(k, panel_dims[i], n, turn++);
        }
        one(k, panel_dims[i], k->uk->key_block, turn++);
    }
}
