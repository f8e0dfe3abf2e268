/*
 * check_block.c: softmax and pv of one block together, O = OT / l, against float64: for every
 * table, whatever form its probabilities and its maximum have. The bound is gamma of the additions;
 * where P has 16 bits, 2^-8 for the rounding of each p, and 2^-8 again since l may be the sum of
 * the rounded ones.
 */
#include "checks.h"
#include "panel.h"

#include <math.h>

typedef struct block {
    int64_t n, dv;
    attn_tensor value;
    /* scores, times log2(e) exponents; -inf = not visible */
    double s[KIT_MOST_KEYS * KIT_MOST_LANES];
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
        double s = b->s[key * k->uk->strip + lane];
        p[key] = s == -(double)INFINITY ? 0 : expl((long double)s - (long double)top);
        sum += p[key];
    }
    return sum;
}

static bool judge_lane(kit *k, const block *b, int64_t lane, const void *ot, double l,
                       double relative)
{
    static long double p[KIT_MOST_KEYS];
    long double sum = lane_weights(k, b, lane, p);
    for (int64_t col = 0; col < b->dv; col++) {
        long double exact = 0, size = 0;
        for (int64_t key = 0; key < b->n; key++) {
            if (p[key] == 0) {
                continue; /* not visible: its value may be no number */
            }
            long double x = p[key] * (long double)panel_element(&b->value, key, col);
            exact += x, size += fabsl(x);
        }
        if (!isfinite((double)exact) || sum == 0) {
            continue;
        }
        double got = kit_get(k, ot, col * k->uk->strip + lane) / l,
               error = fabs(got - (double)(exact / sum));
        if (!(error <= relative * (double)(size / sum))) {
            kit_fail(k, "O[%lld][%lld] = %.9g, exact %.9g", (long long)col, (long long)lane, got,
                     (double)(exact / sum));
            return false;
        }
    }
    return true;
}

static void judge(kit *k, const block *b, const void *ot, const void *l, int lanes)
{
    const double relative = 2 * k->uk->losses.weights + kit_gamma(k, 2 * (double)b->n + 40);
    bool good = true;
    for (int64_t lane = 0; good && lane < lanes; lane++) {
        good = judge_lane(k, b, lane, ot, kit_get(k, l, lane), relative);
    }
}

/* Scores, a third of them hidden if careful. In every third turn they rise from tile to tile, far
 * and less far, so sums relative to earlier maxima have to be scaled down. */
static void fill(kit *k, block *b, unsigned char *visible, bool careful, int64_t turn)
{
    for (int64_t i = 0; i < b->n * k->uk->strip; i++) {
        visible[i] = !careful || kit_choice(k, 71, i + turn, 3) != 0;
        double size = turn % 3 == 0 ? 8 : 2,
               rise = turn % 3 == 0 ? (double)(i / k->uk->strip) * (turn % 2 ? 0.8 : 0.1) : 0;
        double x = visible[i] ? size * kit_value(k, VALUES_NORMAL, 70, i + turn, 1) + rise
                              : -(double)INFINITY;
        b->s[i] = k->uk->real_size == 4 ? (double)(float)x : x;
    }
    kit_lock(k, SLOT_VISIBLE);
}

static void *make_state(kit *k, enum slot slot, int64_t rows, double value)
{
    void *state = kit_slot(k, slot, (size_t)(rows * k->uk->strip * k->uk->real_size));
    for (int64_t i = 0; i < rows * k->uk->strip; i++) {
        kit_put(k, state, i, value);
    }
    return state;
}

static void one(kit *k, int64_t dv, int64_t n, int64_t turn, bool careful)
{
    static block b;
    int64_t strip = k->uk->strip, granule = k->uk->granule,
            pad = (dv + granule - 1) / granule * granule;
    size_t row = (size_t)(strip * k->uk->real_size);
    int lanes = kit_lanes(k, turn);
    b.n = n, b.dv = dv;
    kit_doing(k, "dv=%lld n=%lld lanes=%d dtype=%d turn=%lld careful=%d", (long long)dv,
              (long long)n, lanes, k->dtype, (long long)turn, careful);
    b.value = panel_matrix(k, SLOT_SOURCE, n, dv, careful ? VALUES_SPECIAL : VALUES_NORMAL,
                           panel_stride(turn));
    void *s = kit_slot(k, SLOT_S, (size_t)k->uk->key_tile * row),
         *panel = kit_slot(k, SLOT_V, k->uk->v_bytes(pad));
    void *m = make_state(k, SLOT_M, 1, -(double)INFINITY), *l = make_state(k, SLOT_L, 1, 0);
    void *top = k->uk->lags ? make_state(k, SLOT_TOP, 1, -(double)INFINITY) : m;
    void *alpha = kit_slot(k, SLOT_ALPHA, row),
         *ot = make_state(k, SLOT_OT, pad, turn % 3 ? 0 : (double)NAN);
    void *p = k->uk->p_bytes() > 0 ? kit_slot(k, SLOT_P, k->uk->p_bytes()) : s;
    unsigned char *visible = kit_slot(k, SLOT_VISIBLE, (size_t)(n * strip));
    fill(k, &b, visible, careful, turn);
    /* keys beyond n have weight 0: they must be finite */
    for (size_t i = 0; i < k->uk->v_bytes(pad); i++) {
        ((unsigned char *)panel)[i] = 0;
    }
    attn_rows source = panel_rows(&b.value, 0);
    KIT_CALL(k, k->uk->pack_v(panel, 0, &source, n, dv, pad));
    for (int64_t done = 0; done < n; done += k->uk->key_tile) {
        int64_t keys = n - done < k->uk->key_tile ? n - done : k->uk->key_tile;
        for (int64_t i = 0; i < keys * strip; i++) {
            kit_put(k, s, i, b.s[done * strip + i]);
        }
        KIT_CALL(k, k->uk->softmax(p, done, s, keys, 1.4426950408889634,
                                   &(attn_running){.m = m, .l = l, .alpha = alpha, .top = top},
                                   lanes));
    }
    if (careful) {
        KIT_CALL(
            k, k->uk->pv_careful(ot, panel, 0, p, pad, n, turn % 3 ? alpha : NULL, visible, lanes));
    } else {
        KIT_CALL(k, k->uk->pv(ot, panel, 0, p, pad, n, turn % 3 ? alpha : NULL, lanes));
    }
    judge(k, &b, ot, l, lanes);
}

void check_block(kit *k)
{
    int64_t turn = 0;
    kit_member(k, "block");
    for (int i = 0; i < panel_dims_count; i += 3) {
        for (int64_t n = 1; n <= k->uk->key_block; n += 21) {
            one(k, panel_dims[i], n, turn++, false);
        }
        one(k, panel_dims[i], k->uk->key_block, turn++, false);
        one(k, panel_dims[i], 1 + kit_choice(k, 72, turn, k->uk->key_block), turn, true);
    }
}
