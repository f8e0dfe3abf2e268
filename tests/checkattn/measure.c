/*
 * measure.c: see measure.h.
 */
#include "measure.h"
#include "panel.h"
#include "stats.h"

#include <math.h>
#include <stdio.h>

enum { SAMPLES = 15, CALLS = 200 };

/* The tiles of one block, filled. */
typedef struct tiles {
    int64_t d, n;
    void *k, *v, *qt, *s, *p, *ot, *m, *l, *alpha, *top;
} tiles;

static void run_qk(const kernel_kit *kit, const tiles *t)
{
    kit->uk->qk(t->s, t->k, 0, t->qt, t->d, t->n, kit->uk->strip);
}

static void run_softmax(const kernel_kit *kit, const tiles *t)
{
    kit->uk->softmax(t->p, 0, t->s, kit->uk->key_tile, 0.18,
                     &(attn_running){.m = t->m, .l = t->l, .alpha = t->alpha, .top = t->top},
                     kit->uk->strip);
}

static void run_pv(const kernel_kit *kit, const tiles *t)
{
    kit->uk->pv(t->ot, t->v, 0, t->p, t->d, t->n, t->alpha, kit->uk->strip);
}

static double median_seconds(const kernel_kit *kit, const tiles *t,
                             void (*run)(const kernel_kit *kit, const tiles *t))
{
    double samples[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        double start = stats_now();
        for (int call = 0; call < CALLS; call++) {
            run(kit, t);
        }
        samples[i] = (stats_now() - start) / (double)CALLS;
    }
    return stats_of(samples, SAMPLES).median;
}

static tiles make_tiles(kernel_kit *kit, int64_t d)
{
    size_t lanes = (size_t)(kit->uk->strip * kit->uk->real_size);
    tiles t = {.d = d, .n = kit->uk->key_block};
    const void *rows[KIT_MOST_LANES] = {NULL};
    attn_tensor source = panel_matrix(kit, SLOT_SOURCE, t.n, d, VALUES_NORMAL, 1);
    attn_rows keys = panel_rows(&source, 0);
    for (int lane = 0; lane < kit->uk->strip; lane++) {
        rows[lane] = panel_row(&source, lane % t.n);
    }
    t.k = kit_slot(kit, SLOT_K, kit->uk->k_bytes(d)),
    t.v = kit_slot(kit, SLOT_V, kit->uk->v_bytes(d));
    t.qt = kit_slot(kit, SLOT_QT, kit->uk->q_bytes(d)),
    t.s = kit_slot(kit, SLOT_S, (size_t)t.n * lanes), t.p = t.s;
    t.ot = kit_slot(kit, SLOT_OT, (size_t)d * lanes), t.m = kit_slot(kit, SLOT_M, lanes),
    t.l = kit_slot(kit, SLOT_L, lanes);
    t.alpha = kit_slot(kit, SLOT_ALPHA, lanes),
    t.top = kit->uk->lags ? kit_slot(kit, SLOT_TOP, lanes) : t.m;
    if (kit->uk->p_bytes() > 0) {
        t.p = kit_slot(kit, SLOT_P, kit->uk->p_bytes());
    }
    kit->uk->pack_k(t.k, 0, &keys, t.n, d);
    kit->uk->pack_v(t.v, 0, &keys, t.n, d, d);
    kit->uk->pack_q(t.qt, rows, 1, kit->dtype, d, 1, kit->uk->strip);
    for (int64_t i = 0; i < d * kit->uk->strip; i++) {
        kit_put(kit, t.ot, i, 0);
    }
    for (int64_t i = 0; i < kit->uk->strip; i++) {
        kit_put(kit, t.m, i, 0);
        kit_put(kit, t.top, i, 0);
        kit_put(kit, t.l, i, 0);
    }
    return t;
}

void measure(kernel_kit *kit)
{
    kit_begin(kit->uk);
    for (int64_t d = 64; d <= 128; d *= 2) {
        tiles t = make_tiles(kit, d);
        double scores = (double)t.n * (double)kit->uk->strip;
        run_qk(kit, &t);
        double qk = median_seconds(kit, &t, run_qk), softmax = median_seconds(kit, &t, run_softmax);
        double pv = median_seconds(kit, &t, run_pv);
        printf("%-12s dtype=%d d=%-3lld  qk %8.0f ns %6.1f GFLOP/s   softmax %8.0f ns %5.2f "
               "ns/score   pv %8.0f ns %6.1f "
               "GFLOP/s\n",
               kit->uk->name, kit->dtype, (long long)d, qk * 1e9, 2e-9 * scores * (double)d / qk,
               softmax * 1e9, softmax * 1e9 / (double)(kit->uk->key_tile * kit->uk->strip),
               pv * 1e9, 2e-9 * scores * (double)d / pv);
    }
    kit_end(kit->uk);
}
