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
    bool rows; /* K where it is, not a panel */
} tiles_case;

typedef struct tiles_result {
    double m[KIT_MOST_LANES], l[KIT_MOST_LANES], alpha[KIT_MOST_LANES], top[KIT_MOST_LANES];
    double ot[KIT_MOST_D * KIT_MOST_LANES];
} tiles_result;

static void *filled(kernel_kit *kit, enum slot slot, int64_t rows, double value)
{
    void *to = kit_slot(kit, slot, (size_t)(rows * kit->uk->strip * kit->uk->real_size));
    for (int64_t i = 0; i < rows * kit->uk->strip; i++) {
        kit_put(kit, to, i, value);
    }
    return to;
}

/* Keys from `done` on, tile by tile or in one call. */
static void run_tiles(kernel_kit *kit, const tiles_case *c, void *p, void *s, attn_keys keys,
                      const attn_running *state, bool at_once)
{
    const attn_ukernel *table = kit->uk;
    const char *rows[ATTN_MAX_KEY_BLOCK];
    int64_t done = 0, from = keys.at;
    for (int64_t key = 0; key < c->n; key++) {
        rows[key] = panel_rows(&c->key, key).data;
    }
    for (int64_t n; done < c->n; done += n) {
        const bool rest = at_once && done >= c->done;
        n = rest || c->n - done < table->key_tile ? c->n - done : table->key_tile;
        keys.at = from + done, keys.n = n;
        keys.rows = rest && c->rows ? rows + done : NULL, keys.dtype = c->key.dtype;
        if (rest) {
            KIT_CALL(kit, table->qk_softmax(p, done, s, &keys, c->c, state, c->lanes));
        } else {
            KIT_CALL(kit, table->qk(s, keys.k, keys.at, keys.qt, keys.d, n, c->lanes));
            KIT_CALL(kit, table->softmax(p, done, s, n, c->c, state, c->lanes));
        }
    }
}

static void run(kernel_kit *kit, const tiles_case *c, bool at_once, tiles_result *result)
{
    const attn_ukernel *table = kit->uk;
    const int64_t pad = (c->d + table->granule - 1) / table->granule * table->granule;
    const void *rows[KIT_MOST_LANES] = {NULL};
    attn_rows source = panel_rows(&c->key, 0);
    attn_keys keys = {.k = kit_slot(kit, SLOT_K, table->k_bytes(c->d)), .d = c->d, .at = c->at};
    void *qt = kit_slot(kit, SLOT_QT, table->q_bytes(c->d)),
         *v = kit_slot(kit, SLOT_V, table->v_bytes(pad));
    const int64_t tiles = table->p_bytes() > 0 ? 2 : 1;
    void *s = filled(kit, SLOT_S, tiles * table->key_tile, NAN),
         *ot = filled(kit, SLOT_OT, pad, NAN), *p = s;
    attn_running state = {.m = filled(kit, SLOT_M, 1, -(double)INFINITY),
                          .l = filled(kit, SLOT_L, 1, 0)};
    state.alpha = filled(kit, SLOT_ALPHA, 1, NAN);
    state.top = table->lags ? filled(kit, SLOT_TOP, 1, -(double)INFINITY) : state.m;
    if (table->p_bytes() > 0) {
        p = kit_slot(kit, SLOT_P, table->p_bytes());
    }
    for (int lane = 0; lane < c->lanes; lane++) {
        rows[lane] = panel_row(&c->q, lane);
    }
    memset(v, 0, table->v_bytes(pad)); /* keys beyond n have weight 0: they must be finite */
    KIT_CALL(kit, table->pack_q(qt, rows, c->q.stride[3], kit->dtype, c->d, 1, c->lanes));
    KIT_CALL(kit, table->pack_k((void *)(uintptr_t)keys.k, c->at, &source, c->n, c->d));
    KIT_CALL(kit, table->pack_v(v, c->at, &source, c->n, c->d, pad));
    keys.qt = qt;
    run_tiles(kit, c, p, s, keys, &state, at_once);
    KIT_CALL(kit, table->pv(ot, v, c->at, p, pad, c->n, NULL, c->lanes));
    for (int lane = 0; lane < c->lanes; lane++) {
        result->m[lane] = kit_get(kit, state.m, lane),
        result->l[lane] = kit_get(kit, state.l, lane);
        result->alpha[lane] = kit_get(kit, state.alpha, lane),
        result->top[lane] = kit_get(kit, state.top, lane);
        for (int64_t col = 0; col < c->d; col++) {
            result->ot[col * c->lanes + lane] = kit_get(kit, ot, col * table->strip + lane);
        }
    }
}

static void compare(kernel_kit *kit, const char *what, const double *got, const double *want,
                    int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (got[i] != want[i] && !(isnan(got[i]) && isnan(want[i]))) {
            kit_fail(kit, "%s[%lld] = %.9g, in turn %.9g", what, (long long)i, got[i], want[i]);
            return;
        }
    }
}

static void one(kernel_kit *kit, int64_t d, int64_t n, int64_t turn)
{
    static tiles_result want, got;
    const int64_t tile = kit->uk->key_tile, room = (kit->uk->key_block - n) / tile + 1;
    const enum values kind = (enum values)(turn % VALUES_KINDS);
    tiles_case test = {.d = d,
                       .n = n,
                       .at = kit_choice(kit, 81, turn, room) * tile,
                       .lanes = kit_lanes(kit, turn)};
    test.done = kit_choice(kit, 82, turn, (n + tile - 1) / tile) * tile;
    /* references are raised seldom, sometimes, often */
    test.c = turn % 3 == 0 ? 0.18 : turn % 3 == 1 ? 1.5 : 40;
    kit_doing(kit, "d=%lld n=%lld at=%lld done=%lld lanes=%d kind=%d c=%g dtype=%d turn=%lld",
              (long long)d, (long long)n, (long long)test.at, (long long)test.done, test.lanes,
              kind, test.c, kit->dtype, (long long)turn);
    test.q = panel_matrix(kit, SLOT_SOURCE, kit->uk->strip, d,
                          kind == VALUES_SPECIAL ? VALUES_NORMAL : kind, 1);
    test.key = panel_matrix(kit, SLOT_SOURCE_2, n, d, kind, 1);
    run(kit, &test, false, &want);
    const bool fits = test.lanes <= kit->uk->few_lanes && kit->uk->takes_rows &&
                      kit->uk->takes_rows(test.key.dtype, d);
    for (int rows = 0; rows <= fits; rows++) {
        test.rows = rows == 1;
        run(kit, &test, true, &got);
        compare(kit, test.rows ? "m from rows" : "m", got.m, want.m, test.lanes);
        compare(kit, test.rows ? "l from rows" : "l", got.l, want.l, test.lanes);
        compare(kit, test.rows ? "alpha from rows" : "alpha", got.alpha, want.alpha, test.lanes);
        compare(kit, test.rows ? "top from rows" : "top", got.top, want.top, test.lanes);
        compare(kit, test.rows ? "OT from rows" : "OT", got.ot, want.ot, d * test.lanes);
    }
}

void check_qk_softmax(kernel_kit *kit)
{
    int64_t turn = 0;
    kit_member(kit, "qk_softmax");
    for (int64_t n = 1; n <= kit->uk->key_block; n += 9) {
        one(kit, panel_dims[turn % panel_dims_count], n, turn), turn++;
    }
    for (int i = 0; i < 2 * VALUES_KINDS; i++) {
        one(kit, 40, kit->uk->key_block, turn++);
    }
}
