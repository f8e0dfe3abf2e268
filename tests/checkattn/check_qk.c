/*
 * check_qk.c: S = K QT with the packing of both: scalar's bits, and float64 within gamma_n sum |q
 * k|, where n counts the roundings of a chain of ATTN_DOT_CHUNK products and of adding the chunks.
 */
#include "checks.h"
#include "panel.h"
#include "sums.h"

#include <math.h>

typedef struct qk_case {
    int64_t d, n, at;
    int lanes;
    double factor;
    attn_tensor q, key;
    const void *rows[KIT_MOST_LANES]; /* of q, some NULL */
} qk_case;

static void run_scalar(const kernel_kit *kit, const qk_case *c, void *want)
{
    static double panel[KIT_MOST_KEYS * KIT_MOST_D], qt[8 * KIT_MOST_D], s[8 * KIT_MOST_KEYS];
    attn_rows source = panel_rows(&c->key, 0);
    kit->scalar->pack_k(panel, 0, &source, c->n, c->d);
    for (int first = 0; first < kit->uk->strip; first += kit->scalar->strip) {
        const void *rows[8] = {NULL};
        for (int lane = 0; lane < kit->scalar->strip && first + lane < kit->uk->strip; lane++) {
            rows[lane] = c->rows[first + lane];
        }
        kit->scalar->pack_q(qt, rows, c->q.stride[3], kit->dtype, c->d, c->factor,
                            kit->scalar->strip);
        kit->scalar->qk(s, panel, 0, qt, c->d, c->n, kit->scalar->strip);
        kit_give_lanes(kit, want, s, c->n, first);
    }
}

/* One score against float64; false once it is beyond the bound. Where infinities come in, scalar's
 * bits decide. */
static bool judge_score(kernel_kit *kit, const qk_case *c, const void *s, int64_t key, int64_t lane,
                        double gamma)
{
    bool single = kit->uk->real_size == 4;
    double q[KIT_MOST_D], k[KIT_MOST_D];
    for (int64_t i = 0; i < c->d && c->rows[lane]; i++) {
        q[i] = c->factor * panel_element(&c->q, lane, i);
        k[i] = panel_element(&c->key, key, i);
    }
    const exact_sum exact = exact_dot(kit, q, k, c->rows[lane] ? c->d : 0);
    if (!isfinite(exact.value) || exact.size > (single ? 1e38 : 1e300)) {
        return true;
    }
    double got = kit_get(kit, s, key * kit->uk->strip + lane), error = fabs(got - exact.value);
    /* results below the smallest normal lose up to half of the smallest subnormal each */
    double bound = gamma * exact.size + (double)c->d * (single ? 0x1p-149 : 0x1p-1074);
    if (!(error <= bound)) {
        kit_fail(kit, "S[%lld][%lld] = %.9g, exact %.9g, bound %.3g", (long long)key,
                 (long long)lane, got, exact.value, bound);
        return false;
    }
    kit->worst_qk = fmax(kit->worst_qk, error / bound);
    return true;
}

static void judge(kernel_kit *kit, const qk_case *c, const void *s)
{
    double chunks = ceil((double)c->d / (double)ATTN_DOT_CHUNK),
           chain = fmin((double)c->d, (double)ATTN_DOT_CHUNK);
    double gamma = kit->uk->losses.inputs +
                   kit_gamma(kit, kit->same_bits ? chain + chunks : 4 * (double)c->d + 16);
    bool good = true;
    for (int64_t i = 0; good && i < c->n * kit->uk->strip; i++) {
        good = i % kit->uk->strip >= c->lanes ||
               judge_score(kit, c, s, i / kit->uk->strip, i % kit->uk->strip, gamma);
    }
}

/* The keys in two parts, so that a part starts anywhere in the panel. */
static void pack(kernel_kit *kit, void *panel, const qk_case *c)
{
    for (int64_t part = 0, first = 0; part < 2; part++) {
        int64_t count = part ? c->n - first : c->n / 3;
        attn_rows source = panel_rows(&c->key, first);
        if (count > 0) {
            KIT_CALL(kit, kit->uk->pack_k(panel, c->at + first, &source, count, c->d));
        }
        first += count;
    }
    kit_lock(kit, SLOT_K);
}

/* Where rows are panels, nothing lies behind the last one. */
static size_t panel_bytes(const kernel_kit *kit, const qk_case *c)
{
    return kit->uk->rows_are_panels ? (size_t)((c->at + c->n) * c->d * kit->uk->real_size)
                                    : kit->uk->k_bytes(c->d);
}

static void one(kernel_kit *kit, int64_t d, int64_t n, int64_t turn)
{
    static double want[KIT_MOST_KEYS * KIT_MOST_LANES];
    enum values kind = (enum values)(turn % VALUES_KINDS);
    int64_t strip = kit->uk->strip, block = kit->uk->key_block;
    qk_case test = {.d = d,
                    .n = n,
                    .at = kit_choice(kit, 1, turn, block - n + 1),
                    .lanes = kit_lanes(kit, turn)};
    test.factor = turn % 7 == 6 ? -1 : turn % 11 == 10 ? 0 : 1;
    kit_doing(kit, "d=%lld n=%lld at=%lld lanes=%d kind=%d dtype=%d factor=%g turn=%lld",
              (long long)d, (long long)n, (long long)test.at, test.lanes, kind, kit->dtype,
              test.factor, (long long)turn);
    test.q = panel_matrix(kit, SLOT_SOURCE, strip, d, kind, panel_stride(turn));
    test.key = panel_matrix(kit, SLOT_SOURCE_2, n, d, kind == VALUES_SPECIAL ? VALUES_NORMAL : kind,
                            panel_stride(turn / 5));
    for (int64_t lane = 0; lane < strip; lane++) {
        test.rows[lane] = lane >= test.lanes || (turn % 4 == 3 && lane % 5 == 4)
                              ? NULL
                              : panel_row(&test.q, lane);
    }
    void *panel = kit_slot(kit, SLOT_K, panel_bytes(kit, &test)),
         *qt = kit_slot(kit, SLOT_QT, kit->uk->q_bytes(d));
    void *s = kit_slot(kit, SLOT_S, (size_t)(kit->uk->key_tile * strip * kit->uk->real_size));
    pack(kit, panel, &test);
    KIT_CALL(kit, kit->uk->pack_q(qt, test.rows, test.q.stride[3], kit->dtype, d, test.factor,
                                  test.lanes));
    kit_lock(kit, SLOT_QT);
    KIT_CALL(kit, kit->uk->qk(s, panel, test.at, qt, d, n, test.lanes));
    if (kit->same_bits && kit->uk != kit->scalar) {
        run_scalar(kit, &test, want);
        kit_compare_lanes(kit, "S", s, want, n, test.lanes);
    }
    if (turn % 16 == 0 || !kit->same_bits) {
        judge(kit, &test, s);
    }
}

/* Every n with a few d, every d with a few n, and all kinds of inputs in turn. */
void check_qk(kernel_kit *kit)
{
    int64_t turn = 0;
    kit_member(kit, "qk");
    for (int i = 0; i < panel_dims_count; i++) {
        const int64_t step = i % 4 == 1 ? PANEL_STEP_ALL : PANEL_STEP;
        for (int64_t n = 1; n <= kit->uk->key_tile; n += step) {
            one(kit, panel_dims[i], n, turn++);
        }
        one(kit, panel_dims[i], kit->uk->key_tile, turn++);
    }
}
