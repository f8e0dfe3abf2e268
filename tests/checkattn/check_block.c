/*
 * check_block.c: softmax and pv of one block together, O = OT / l, against float64: for every
 * table, whatever form its probabilities and its maximum have. The bound is gamma of the additions;
 * where P has 16 bits, 2^-8 for the rounding of each p, and 2^-8 again since l may be the sum of
 * the rounded ones.
 */
#include "checks.h"
#include "panel.h"

#include <math.h>

typedef struct block_case {
    int64_t n, dv;
    attn_tensor value;
    /* scores, times log2(e) exponents; -inf = not visible */
    double s[KIT_MOST_KEYS * KIT_MOST_LANES];
} block_case;

/* The probabilities of one lane; their sum. */
static long double lane_weights(const kernel_kit *kit, const block_case *block, int64_t lane,
                                long double *p)
{
    double top = -(double)INFINITY;
    long double sum = 0;
    for (int64_t key = 0; key < block->n; key++) {
        top = fmax(top, block->s[key * kit->uk->strip + lane]);
    }
    for (int64_t key = 0; key < block->n; key++) {
        double s = block->s[key * kit->uk->strip + lane];
        p[key] = s == -(double)INFINITY ? 0 : expl((long double)s - (long double)top);
        sum += p[key];
    }
    return sum;
}

static bool judge_lane(kernel_kit *kit, const block_case *block, int64_t lane, const void *ot,
                       double l, double relative)
{
    static long double p[KIT_MOST_KEYS];
    long double sum = lane_weights(kit, block, lane, p);
    for (int64_t col = 0; col < block->dv; col++) {
        long double exact = 0, size = 0;
        for (int64_t key = 0; key < block->n; key++) {
            if (p[key] == 0) {
                continue; /* not visible: its value may be no number */
            }
            long double x = p[key] * (long double)panel_element(&block->value, key, col);
            exact += x, size += fabsl(x);
        }
        if (!isfinite((double)exact) || sum == 0) {
            continue;
        }
        double got = kit_get(kit, ot, col * kit->uk->strip + lane) / l,
               error = fabs(got - (double)(exact / sum));
        if (!(error <= relative * (double)(size / sum))) {
            kit_fail(kit, "O[%lld][%lld] = %.9g, exact %.9g", (long long)col, (long long)lane, got,
                     (double)(exact / sum));
            return false;
        }
    }
    return true;
}

static void judge(kernel_kit *kit, const block_case *block, const void *ot, const void *l,
                  int lanes)
{
    const double relative = 2 * kit->uk->losses.weights + kit_gamma(kit, 2 * (double)block->n + 40);
    bool good = true;
    for (int64_t lane = 0; good && lane < lanes; lane++) {
        good = judge_lane(kit, block, lane, ot, kit_get(kit, l, lane), relative);
    }
}

/* Scores, a third of them hidden if careful. In every third turn they rise from tile to tile, far
 * and less far, so sums relative to earlier maxima have to be scaled down. */
static void fill(kernel_kit *kit, block_case *block, unsigned char *visible, bool careful,
                 int64_t turn)
{
    for (int64_t i = 0; i < block->n * kit->uk->strip; i++) {
        visible[i] = !careful || kit_choice(kit, 71, i + turn, 3) != 0;
        double size = turn % 3 == 0 ? 8 : 2,
               rise = turn % 3 == 0 ? (double)(i / kit->uk->strip) * (turn % 2 ? 0.8 : 0.1) : 0;
        double x = visible[i] ? size * kit_value(kit, VALUES_NORMAL, 70, i + turn, 1) + rise
                              : -(double)INFINITY;
        block->s[i] = kit->uk->real_size == 4 ? (double)(float)x : x;
    }
    kit_lock(kit, SLOT_VISIBLE);
}

static void *make_state(kernel_kit *kit, enum slot slot, int64_t rows, double value)
{
    void *state = kit_slot(kit, slot, (size_t)(rows * kit->uk->strip * kit->uk->real_size));
    for (int64_t i = 0; i < rows * kit->uk->strip; i++) {
        kit_put(kit, state, i, value);
    }
    return state;
}

/* pack_v_few, called for two runs of keys, and pv_few give the bits of pv. */
static void compare_few(kernel_kit *kit, const block_case *block, const void *ot, const void *p,
                        const void *alpha, int lanes)
{
    const attn_ukernel *table = kit->uk;
    const int64_t pad = (block->dv + table->granule - 1) / table->granule * table->granule;
    void *panel = kit_slot(kit, SLOT_K, table->v_bytes(pad)),
         *few = make_state(kit, SLOT_QT, pad, alpha ? 0 : (double)NAN);
    for (int64_t first = 0, end = block->n / 3; first < block->n; first = end, end = block->n) {
        const attn_rows source = panel_rows(&block->value, first);
        if (end > first) {
            KIT_CALL(kit, table->pack_v_few(panel, first, &source, end - first, block->dv, pad));
        }
    }
    kit_lock(kit, SLOT_K);
    KIT_CALL(kit, table->pv_few(few, panel, 0, p, pad, block->n, alpha, lanes));
    kit_compare_lanes(kit, "OT of few", few, ot, block->dv, lanes);
}

static void one(kernel_kit *kit, int64_t dv, int64_t n, int64_t turn, bool careful)
{
    static block_case block;
    int64_t strip = kit->uk->strip, granule = kit->uk->granule,
            pad = (dv + granule - 1) / granule * granule;
    size_t row = (size_t)(strip * kit->uk->real_size);
    int lanes = kit_lanes(kit, turn);
    block.n = n, block.dv = dv;
    kit_doing(kit, "dv=%lld n=%lld lanes=%d dtype=%d turn=%lld careful=%d", (long long)dv,
              (long long)n, lanes, kit->dtype, (long long)turn, careful);
    block.value = panel_matrix(kit, SLOT_SOURCE, n, dv, careful ? VALUES_SPECIAL : VALUES_NORMAL,
                               panel_stride(turn));
    void *s = kit_slot(kit, SLOT_S, (size_t)kit->uk->key_tile * row),
         *panel = kit_slot(kit, SLOT_V, kit->uk->v_bytes(pad));
    void *m = make_state(kit, SLOT_M, 1, -(double)INFINITY), *l = make_state(kit, SLOT_L, 1, 0);
    void *top = kit->uk->lags ? make_state(kit, SLOT_TOP, 1, -(double)INFINITY) : m;
    void *alpha = kit_slot(kit, SLOT_ALPHA, row),
         *ot = make_state(kit, SLOT_OT, pad, turn % 3 ? 0 : (double)NAN);
    void *p = kit->uk->p_bytes() > 0 ? kit_slot(kit, SLOT_P, kit->uk->p_bytes()) : s;
    unsigned char *visible = kit_slot(kit, SLOT_VISIBLE, (size_t)(n * strip));
    fill(kit, &block, visible, careful, turn);
    /* keys beyond n have weight 0: they must be finite */
    for (size_t i = 0; i < kit->uk->v_bytes(pad); i++) {
        ((unsigned char *)panel)[i] = 0;
    }
    attn_rows source = panel_rows(&block.value, 0);
    KIT_CALL(kit, kit->uk->pack_v(panel, 0, &source, n, dv, pad));
    for (int64_t done = 0; done < n; done += kit->uk->key_tile) {
        int64_t keys = n - done < kit->uk->key_tile ? n - done : kit->uk->key_tile;
        for (int64_t i = 0; i < keys * strip; i++) {
            kit_put(kit, s, i, block.s[done * strip + i]);
        }
        KIT_CALL(kit, kit->uk->softmax(p, done, s, keys, 1.4426950408889634,
                                       &(attn_running){.m = m, .l = l, .alpha = alpha, .top = top},
                                       lanes));
    }
    if (careful) {
        KIT_CALL(kit, kit->uk->pv_careful(ot, panel, 0, p, pad, n, turn % 3 ? alpha : NULL, visible,
                                          lanes, kit_room(kit)));
    } else {
        KIT_CALL(kit, kit->uk->pv(ot, panel, 0, p, pad, n, turn % 3 ? alpha : NULL, lanes));
    }
    judge(kit, &block, ot, l, lanes);
    if (!careful && lanes <= kit->uk->few_lanes) {
        compare_few(kit, &block, ot, p, turn % 3 ? alpha : NULL, lanes);
    }
}

void check_block(kernel_kit *kit)
{
    int64_t turn = 0;
    kit_member(kit, "block");
    for (int i = 0; i < panel_dims_count; i += 3) {
        for (int64_t n = 1; n <= kit->uk->key_block; n += 21) {
            one(kit, panel_dims[i], n, turn++, false);
        }
        one(kit, panel_dims[i], kit->uk->key_block, turn++, false);
        one(kit, panel_dims[i], 1 + kit_choice(kit, 72, turn, kit->uk->key_block), turn, true);
    }
}
