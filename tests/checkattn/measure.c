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

static void run_qk(const kit *k, const tiles *t)
{
    k->uk->qk(t->s, t->k, 0, t->qt, t->d, t->n, k->uk->strip);
}

static void run_softmax(const kit *k, const tiles *t)
{
    k->uk->softmax(t->p, 0, t->s, k->uk->key_tile, 0.18,
                   &(attn_running){.m = t->m, .l = t->l, .alpha = t->alpha, .top = t->top},
                   k->uk->strip);
}

static void run_pv(const kit *k, const tiles *t)
{
    k->uk->pv(t->ot, t->v, 0, t->p, t->d, t->n, t->alpha, k->uk->strip);
}

static double median_seconds(const kit *k, const tiles *t,
                             void (*run)(const kit *k, const tiles *t))
{
    double samples[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        double start = stats_now();
        for (int call = 0; call < CALLS; call++) {
            run(k, t);
        }
        samples[i] = (stats_now() - start) / CALLS;
    }
    return stats_of(samples, SAMPLES).median;
}

static tiles make_tiles(kit *k, int64_t d)
{
    size_t lanes = (size_t)(k->uk->strip * k->uk->real_size);
    tiles t = {.d = d, .n = k->uk->key_block};
    const void *rows[KIT_MOST_LANES] = {NULL};
    attn_tensor source = panel_matrix(k, SLOT_SOURCE, t.n, d, VALUES_NORMAL, 1);
    attn_rows keys = panel_rows(&source, 0);
    for (int lane = 0; lane < k->uk->strip; lane++) {
        rows[lane] = panel_row(&source, lane % t.n);
    }
    t.k = kit_slot(k, SLOT_K, k->uk->k_bytes(d)), t.v = kit_slot(k, SLOT_V, k->uk->v_bytes(d));
    t.qt = kit_slot(k, SLOT_QT, k->uk->q_bytes(d)), t.s = kit_slot(k, SLOT_S, (size_t)t.n * lanes),
    t.p = t.s;
    t.ot = kit_slot(k, SLOT_OT, (size_t)d * lanes), t.m = kit_slot(k, SLOT_M, lanes),
    t.l = kit_slot(k, SLOT_L, lanes);
    t.alpha = kit_slot(k, SLOT_ALPHA, lanes),
    t.top = k->uk->lags ? kit_slot(k, SLOT_TOP, lanes) : t.m;
    if (k->uk->p_bytes() > 0) {
        t.p = kit_slot(k, SLOT_P, k->uk->p_bytes());
    }
    k->uk->pack_k(t.k, 0, &keys, t.n, d);
    k->uk->pack_v(t.v, 0, &keys, t.n, d, d);
    k->uk->pack_q(t.qt, rows, 1, k->dtype, d, 1, k->uk->strip);
    for (int64_t i = 0; i < d * k->uk->strip; i++) {
        kit_put(k, t.ot, i, 0);
    }
    for (int64_t i = 0; i < k->uk->strip; i++) {
        kit_put(k, t.m, i, 0);
        kit_put(k, t.top, i, 0);
        kit_put(k, t.l, i, 0);
    }
    return t;
}

void measure(kit *k)
{
    kit_begin(k->uk);
    for (int64_t d = 64; d <= 128; d *= 2) {
        tiles t = make_tiles(k, d);
        double scores = (double)t.n * (double)k->uk->strip;
        run_qk(k, &t);
        double qk = median_seconds(k, &t, run_qk), softmax = median_seconds(k, &t, run_softmax);
        double pv = median_seconds(k, &t, run_pv);
        printf("%-12s dtype=%d d=%-3lld  qk %8.0f ns %6.1f GFLOP/s   softmax %8.0f ns %5.2f "
               "ns/score   pv %8.0f ns %6.1f "
               "GFLOP/s\n",
               k->uk->name, k->dtype, (long long)d, qk * 1e9, 2e-9 * scores * (double)d / qk,
               softmax * 1e9, softmax * 1e9 / (double)(k->uk->key_tile * k->uk->strip), pv * 1e9,
               2e-9 * scores * (double)d / pv);
    }
    kit_end(k->uk);
}
