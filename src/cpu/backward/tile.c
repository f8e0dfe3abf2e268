/*
 * tile.c: see tile.h.
 */
#include "cpu/backward/tile.h"
#include "cpu/keys.h"
#include <math.h>
#include <string.h>

void attn_grad_run_init(attn_grad_run *r, const attn_grad_plan *plan, const attn_gradients *g,
                        char *workspace, int32_t thread)
{
    const attn_grad_map *m = &plan->map;
    char *base = workspace + plan->scratch + (uint64_t)thread * m->total;
    *r = (attn_grad_run){
        .plan = plan,
        .g = g,
        .p = &g->p,
        .uk = plan->uk,
        .grad = plan->uk->grad,
        .factor = g->p.scale,
        .lse = workspace + plan->lse,
        .delta = workspace + plan->delta,
        .k = base + m->k,
        .kt = base + m->kt,
        .v = base + m->v,
        .dk = base + m->dk,
        .dv = base + m->dv,
        .qt = base + m->qt,
        .dot = base + m->dot,
        .q = base + m->q,
        .d_o = base + m->d_o,
        .s = base + m->s,
        .dp = base + m->dp,
        .p_left = base + m->p,
        .ds_left = base + m->ds,
        .right = base + m->right,
        .products = base + m->products,
        .keep = base + m->keep,
        .plain = base + m->plain,
        .visible = (unsigned char *)base + m->visible,
        .lane_lse = base + m->lse,
        .lane_delta = base + m->delta,
        .ones = base + m->ones,
        .dqt = base + m->dqt,
        .sums = (double *)(void *)(base + m->sums),
        .key_sums = (double *)(void *)(base + m->key_sums),
        .partial = (double *)(void *)(workspace + plan->partial),
    };
    r->scores = (attn_score_run){.p = r->p, .uk = r->uk, .plan = &plan->scores, .seq = &r->seq};
    r->scores.all_lanes = !attn_grad_in_place(r);
    r->cells = plan->cells;
    if (r->cells.rows > 0) {
        r->cells.kind = (const unsigned char *)workspace + plan->cells_at;
        r->scores.cells = &r->cells;
    }
    r->scores.bias = base + m->bias;
    attn_score_lanes(&r->scores, base + m->lanes);
    for (int lane = 0; lane < r->uk->strip; lane++) {
        set_real(r->uk, r->ones, lane, 1);
    }
}

/* ---- packing --------------------------------------------------------------------------------- */

/* Keys key .. end-1 of a run, into the panels of the block that begins at key `block`. */
static void pack_run(attn_grad_run *r, int64_t block, int64_t key, int64_t end, bool transposed)
{
    const attn_problem *p = r->p;
    const attn_ukernel *uk = r->uk;
    const attn_rows k = attn_key_rows(r->p, &p->k, &r->seq, r->kv_head, key);
    const attn_rows v = attn_key_rows(r->p, &p->v, &r->seq, r->kv_head, key);
    const int64_t at = key - block, n = end - key;
    uk->pack_k(attn_grad_panel(r, r->k, uk->k_bytes(p->d), block), at, &k, n, p->d);
    uk->pack_k(attn_grad_panel(r, r->v, uk->k_bytes(p->dv), block), at, &v, n, p->dv);
    if (transposed && r->kt != r->k) {
        void *to = attn_grad_panel(r, r->kt, uk->v_bytes(r->plan->d_pad), block);
        uk->pack_v(to, at, &k, n, p->d, r->plan->d_pad);
    }
}

void attn_grad_pack_keys(attn_grad_run *r, int64_t first, int64_t last, bool transposed)
{
    const int64_t size = r->uk->key_block;
    for (int64_t key = first, end; key < last; key = end) {
        const int64_t block = key - (key - first) % size;
        end = attn_kv_run_end(r->p, &r->seq, key, min64(block + size, last));
        pack_run(r, block, key, end, transposed);
    }
}

int attn_grad_lanes(const attn_grad_run *r, int strip)
{
    return (int)min64(r->last_row - r->first_row - (int64_t)strip * r->uk->strip, r->uk->strip);
}

/* Rows beyond those in use are never read: they may hold anything. */
static void pack_one_strip(attn_grad_run *r, int strip, bool as_rows)
{
    const void *q[ATTN_MAX_STRIP] = {NULL}, *d_o[ATTN_MAX_STRIP] = {NULL};
    const int width = r->uk->strip;
    const int64_t first = r->first_row + (int64_t)strip * width;
    r->spoilt[strip] = 0;
    for (int lane = 0; lane < width; lane++) {
        double lse = INFINITY, delta = 0;
        lane_row row = attn_score_row(&r->scores, first + lane);
        if (lane < attn_grad_lanes(r, strip) && row.query < r->seq.nq_used) {
            int64_t i = r->seq.q_first + row.query,
                    at = (r->seq.tensor * r->p->q.shape[1] + i) * r->p->heads + row.head;
            q[lane] = attn_at(&r->p->q, r->seq.tensor, i, row.head, 0);
            d_o[lane] = attn_at(&r->g->d_o, r->seq.tensor, i, row.head, 0);
            lse = get_real(r->uk, r->lse, at), delta = get_real(r->uk, r->delta, at);
        }
        if (isnan(lse)) { /* masked positions would be NaN too: see spoil() */
            r->spoilt[strip] |= (uint64_t)1 << lane;
            lse = INFINITY;
        }
        set_real(r->uk, r->lane_lse, strip * width + lane, lse);
        set_real(r->uk, r->lane_delta, strip * width + lane, delta);
    }
    const attn_tensor *tq = &r->p->q, *tdo = &r->g->d_o;
    const int64_t d = r->p->d, dv = r->p->dv, d_pad = r->plan->d_pad, dv_pad = r->plan->dv_pad;
    const double factor = r->plan->scores.factor;
    void *qt = attn_grad_strip(r->qt, r->uk->q_bytes(d), strip),
         *dot = attn_grad_strip(r->dot, r->uk->q_bytes(dv), strip);
    if (!as_rows) {
        r->uk->pack_q(qt, q, tq->stride[3], tq->dtype, d, factor, width);
        r->uk->pack_q(dot, d_o, tdo->stride[3], tdo->dtype, dv, 1, width);
        return;
    }
    void *qx = attn_grad_strip(r->q, r->grad->x_bytes(d_pad), strip);
    void *d_ox = attn_grad_strip(r->d_o, r->grad->x_bytes(dv_pad), strip);
    r->grad->pack_both(qt, qx, q, tq->stride[3], tq->dtype, d, d_pad, factor);
    r->grad->pack_both(dot, d_ox, d_o, tdo->stride[3], tdo->dtype, dv, dv_pad, 1);
}

void attn_grad_pack_rows(attn_grad_run *r, int64_t first, int64_t last, bool as_rows)
{
    r->first_row = first, r->last_row = last;
    r->strips = (int)((last - first + r->uk->strip - 1) / r->uk->strip);
    for (int i = 0; i < r->strips; i++) {
        r->mask[i] = attn_score_rows_mask(&r->scores, first + (int64_t)i * r->uk->strip,
                                          attn_grad_lanes(r, i));
        pack_one_strip(r, i, as_rows);
    }
}

/* ---- the tile -------------------------------------------------------------------------------- */

attn_interval attn_grad_part(const attn_grad_run *r, int strip, attn_interval all)
{
    attn_interval part;
    if (attn_mask_tile(&r->mask[strip], all.lo, all.hi, &part) == ATTN_TILE_SKIP) {
        return (attn_interval){all.lo, all.lo};
    }
    part.lo -= part.lo % r->grad->key_step;
    return part;
}

/* Rows whose LSE is NaN: P and dS of the keys that they see are NaN, and no others. */
static void spoil(const attn_grad_run *r, int strip, char *s, int64_t n)
{
    for (int64_t i = 0; i < n * r->uk->strip; i++) {
        if (r->spoilt[strip] >> i % r->uk->strip & 1 && get_real(r->uk, s, i) != -INFINITY) {
            set_real(r->uk, s, i, NAN);
        }
    }
}

/* Lanes of the last strip that are no rows, though products read them: 0 times an infinite key is
 * NaN, and P must be 0. */
static void hide_spare_lanes(const attn_grad_run *r, int lanes, char *s, int64_t n)
{
    const int64_t width = r->uk->strip;
    for (int64_t key = 0; key < n; key++) {
        if (isnan(get_real(r->uk, s, key * width + lanes))) { /* one is like the other */
            fill_reals(r->uk, s + (key * width + lanes) * r->uk->real_size, width - lanes,
                       -INFINITY);
        }
    }
}

/* Computes the scores of a tile. */
static void run_scores(attn_grad_run *r, int strip, int64_t block, attn_interval keys, char *s)
{
    const attn_ukernel *uk = r->uk;
    const int64_t n = keys.hi - keys.lo, at = keys.lo - block,
                  first = r->first_row + (int64_t)strip * uk->strip;
    const int lanes = attn_grad_lanes(r, strip);
    const attn_rows_mask *mask = &r->mask[strip];
    const bool partial = keys.lo < mask->common.lo || keys.hi > mask->common.hi;
    uk->qk(s, attn_grad_panel(r, r->k, uk->k_bytes(r->p->d), block), at,
           attn_grad_strip(r->qt, uk->q_bytes(r->p->d), strip), r->p->d, n,
           attn_grad_width(r, strip));
    if (lanes % r->grad->row_step != 0) {
        hide_spare_lanes(r, lanes, s, n);
    }
    if (r->p->softcap > 0) {
        memcpy(r->products, s, (size_t)(n * uk->strip * uk->real_size));
    }
    attn_score_tile_run(&r->scores, s, first, lanes, keys,
                        partial ? ATTN_TILE_PARTIAL : ATTN_TILE_FULL);
    if (r->careful) {
        attn_score_note_visible(uk, s, n,
                                r->visible + (strip * (int64_t)uk->key_block + at) * uk->strip);
    }
    if (r->spoilt[strip]) {
        spoil(r, strip, s, n);
    }
}

void attn_grad_tile_run(attn_grad_run *r, int strip, int64_t block, attn_interval keys,
                        const attn_grad_forms *to)
{
    const attn_ukernel *uk = r->uk;
    const int64_t line = uk->strip * uk->real_size,
                  first = r->first_row + (int64_t)strip * uk->strip;
    const int64_t n = keys.hi - keys.lo, at = keys.lo - block;
    const bool capped = r->p->softcap > 0 && !r->natural;
    char *s = attn_grad_tile_at(r, r->s, strip, at), *dp = attn_grad_tile_at(r, r->dp, strip, at);
    run_scores(r, strip, block, keys, s);
    r->grad->dp(dp, attn_grad_panel(r, r->v, uk->k_bytes(r->p->dv), block), at,
                attn_grad_strip(r->dot, uk->q_bytes(r->p->dv), strip), r->p->dv, n,
                attn_grad_width(r, strip));
    if (r->p->dropout.on) {
        attn_score_drop(&r->scores, r->keep, 0, first, keys.lo, n, false);
    }
    const attn_grad_tile tile = {
        .exponent = r->plan->scores.exponent,
        .factor = r->factor,
        .lse = r->lane_lse + strip * line,
        .delta = r->lane_delta + strip * line,
        .keep = r->p->dropout.on ? r->keep : NULL,
        .plain = r->d_scores ? r->plain : NULL,
    };
    if (to == NULL || capped) {
        r->grad->softmax(s, dp, n, &tile, attn_grad_width(r, strip));
    }
    if (capped) {
        r->grad->softcap(dp, r->products, n, r->plan->scores.scale, r->p->softcap);
    }
    if (to) {
        r->grad->split(to, s, dp, n, capped ? NULL : &tile);
    }
}
