/*
 * check_qk_softmax.c: qk_softmax gives the bits of qk and softmax in turn, tile by tile, which have
 * checks of their own. P has a form of the table's own, so its product with values is compared.
 */
#include "checks.h"
#include "panel.h"

#include <math.h>
#include <string.h>

typedef struct tiles_case {
    int64_t d, n, at, done; /* `done` keys by single tiles first */
    int lanes;
    double c;
    attn_tensor q, key;
} tiles_case;

typedef struct tiles_result {
    double m[KIT_MOST_LANES], l[KIT_MOST_LANES], alpha[KIT_MOST_LANES], top[KIT_MOST_LANES];
    double ot[KIT_MOST_D * KIT_MOST_LANES];
} tiles_result;

static void *filled(kit *k, enum slot slot, int64_t rows, double value)
{
    void *to = kit_slot(k, slot, (size_t)(rows * k->uk->strip * k->uk->real_size));
    for (int64_t i = 0; i < rows * k->uk->strip; i++) {
        kit_put(k, to, i, value);
    }
    return to;
}

/* Keys from `done` on, tile by tile or in one call. */
static void run_tiles(kit *k, const tiles_case *c, void *p, void *s, attn_keys keys,
                      const attn_running *state, bool at_once)
{
    const attn_ukernel *uk = k->uk;
    int64_t done = 0, from = keys.at;
    for (int64_t n; done < c->n; done += n) {
        const bool rest = at_once && done >= c->done;
        n = rest || c->n - done < uk->key_tile ? c->n - done : uk->key_tile;
        keys.at = from + done, keys.n = n;
        if (rest) {
            KIT_CALL(k, uk->qk_softmax(p, done, s, &keys, c->c, state, c->lanes));
        } else {
            KIT_CALL(k, uk->qk(s, keys.k, keys.at, keys.qt, keys.d, n, c->lanes));
            KIT_CALL(k, uk->softmax(p, done, s, n, c->c, state, c->lanes));
        }
    }
}

static void run(kit *k, const tiles_case *c, bool at_once, tiles_result *result)
{
    const attn_ukernel *uk = k->uk;
    const int64_t pad = (c->d + uk->granule - 1) / uk->granule * uk->granule;
    const void *rows[KIT_MOST_LANES] = {NULL};
    attn_rows source = panel_rows(&c->key, 0);
    attn_keys keys = {.k = kit_slot(k, SLOT_K, uk->k_bytes(c->d)), .d = c->d, .at = c->at};
    void *qt = kit_slot(k, SLOT_QT, uk->q_bytes(c->d)), *v = kit_slot(k, SLOT_V, uk->v_bytes(pad));
    const int64_t tiles = uk->p_bytes() > 0 ? 2 : 1;
    void *s = filled(k, SLOT_S, tiles * uk->key_tile, NAN), *ot = filled(k, SLOT_OT, pad, NAN),
         *p = s;
    attn_running state = {.m = filled(k, SLOT_M, 1, -(double)INFINITY),
                          .l = filled(k, SLOT_L, 1, 0)};
    state.alpha = filled(k, SLOT_ALPHA, 1, NAN);
    state.top = uk->lags ? filled(k, SLOT_TOP, 1, -(double)INFINITY) : state.m;
    if (uk->p_bytes() > 0) {
        p = kit_slot(k, SLOT_P, uk->p_bytes());
    }
    for (int lane = 0; lane < c->lanes; lane++) {
        rows[lane] = panel_row(&c->q, lane);
    }
    memset(v, 0, uk->v_bytes(pad)); /* keys beyond n have weight 0: they must be finite */
    KIT_CALL(k, uk->pack_q(qt, rows, c->q.stride[3], k->dtype, c->d, 1, c->lanes));
    KIT_CALL(k, uk->pack_k((void *)(uintptr_t)keys.k, c->at, &source, c->n, c->d));
    KIT_CALL(k, uk->pack_v(v, c->at, &source, c->n, c->d, pad));
    keys.qt = qt;
    run_tiles(k, c, p, s, keys, &state, at_once);
    KIT_CALL(k, uk->pv(ot, v, c->at, p, pad, c->n, NULL, c->lanes));
    for (int lane = 0; lane < c->lanes; lane++) {
        result->m[lane] = kit_get(k, state.m, lane), result->l[lane] = kit_get(k, state.l, lane);
        result->alpha[lane] = kit_get(k, state.alpha, lane),
        result->top[lane] = kit_get(k, state.top, lane);
        for (int64_t col = 0; col < c->d; col++) {
            result->ot[col * c->lanes + lane] = kit_get(k, ot, col * uk->strip + lane);
        }
    }
}

static void compare(kit *k, const char *what, const double *got, const double *want, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (got[i] != want[i] && !(isnan(got[i]) && isnan(want[i]))) {
            kit_fail(k, "%s[%lld] = %.9g, in turn %.9g", what, (long long)i, got[i], want[i]);
            return;
        }
    }
}

static void one(kit *k, int64_t d, int64_t n, int64_t turn)
{
    static tiles_result want, got;
    const int64_t tile = k->uk->key_tile, room = (k->uk->key_block - n) / tile + 1;
    const enum values kind = (enum values)(turn % VALUES_KINDS);
    tiles_case c = {
        .d = d, .n = n, .at = kit_choice(k, 81, turn, room) * tile, .lanes = kit_lanes(k, turn)};
    c.done = kit_choice(k, 82, turn, (n + tile - 1) / tile) * tile;
    /* references are raised seldom, sometimes, often */
    c.c = turn % 3 == 0 ? 0.18 : turn % 3 == 1 ? 1.5 : 40;
    kit_doing(k, "d=%lld n=%lld at=%lld done=%lld lanes=%d kind=%d c=%g dtype=%d turn=%lld",
              (long long)d, (long long)n, (long long)c.at, (long long)c.done, c.lanes, kind, c.c,
              k->dtype, (long long)turn);
    c.q = panel_matrix(k, SLOT_SOURCE, k->uk->strip, d,
                       kind == VALUES_SPECIAL ? VALUES_NORMAL : kind, 1);
    c.key = panel_matrix(k, SLOT_SOURCE_2, n, d, kind, 1);
    run(k, &c, false, &want);
    run(k, &c, true, &got);
    compare(k, "m", got.m, want.m, c.lanes);
    compare(k, "l", got.l, want.l, c.lanes);
    compare(k, "alpha", got.alpha, want.alpha, c.lanes);
    compare(k, "top", got.top, want.top, c.lanes);
    compare(k, "OT", got.ot, want.ot, d * c.lanes);
}

void check_qk_softmax(kit *k)
{
    int64_t turn = 0;
    kit_member(k, "qk_softmax");
    for (int64_t n = 1; n <= k->uk->key_block; n += 9) {
        one(k, panel_dims[turn % panel_dims_count], n, turn), turn++;
    }
    for (int i = 0; i < 2 * VALUES_KINDS; i++) {
        one(k, 40, k->uk->key_block, turn++);
    }
}
