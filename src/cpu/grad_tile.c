/*
 * grad_tile.c: see grad_tile.h.
 */
#include "cpu/grad_tile.h"
#include <math.h>
#include <string.h>

void attn_grad_run_init(attn_grad_run *r, const attn_backward_plan *plan, const attn_gradients *g, char *workspace,
                        int32_t thread)
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
        .v = base + m->v,
        .dk = base + m->dk,
        .dv = base + m->dv,
        .qt = base + m->qt,
        .dot = base + m->dot,
        .q = base + m->q,
        .d_o = base + m->d_o,
        .s = base + m->s,
        .dp = base + m->dp,
        .products = base + m->products,
        .keep = base + m->keep,
        .visible = (unsigned char *)base + m->visible,
        .lane_lse = base + m->lse,
        .lane_delta = base + m->delta,
        .ones = base + m->ones,
        .dqt = base + m->dqt,
        .sums = (double *)(void *)(base + m->sums),
    };
    r->scores = (attn_score_run){.p = r->p, .uk = r->uk, .plan = &plan->scores, .seq = &r->seq};
    r->scores.bias = base + m->bias;
    attn_score_lanes(&r->scores, base + m->lanes);
    for (int lane = 0; lane < r->uk->strip; lane++) {
        set_real(r->uk, r->ones, lane, 1);
    }
}

/* ---- packing --------------------------------------------------------------------------------------------------- */

static attn_rows rows_at(const attn_tensor *t, int64_t b, int64_t i, int64_t h)
{
    return (attn_rows){attn_at(t, b, i, h, 0), t->stride[1], t->stride[3], t->dtype};
}

void attn_grad_pack_keys(const attn_grad_run *r, int64_t first, int64_t last)
{
    if (first < last) {
        attn_rows k = rows_at(&r->p->k, r->seq.tensor, r->seq.k_first + first, r->kv_head);
        attn_rows v = rows_at(&r->p->v, r->seq.tensor, r->seq.k_first + first, r->kv_head);
        r->uk->pack_v(r->k, 0, &k, last - first, r->p->d, r->plan->d_pad);
        r->uk->pack_v(r->v, 0, &v, last - first, r->p->dv, r->plan->dv_pad);
    }
}

int attn_grad_lanes(const attn_grad_run *r, int strip)
{
    return (int)min64(r->last_row - r->first_row - (int64_t)strip * r->uk->strip, r->uk->strip);
}

/* A strip of one tensor as [pad][strip]; padding 0. */
static void pack_strip(const attn_grad_run *r, char *to, const void *const *rows, const attn_tensor *t, int64_t pad,
                       double factor)
{
    int64_t cols = t->shape[3], line = r->uk->strip * r->uk->real_size;
    r->uk->pack_q(to, rows, t->stride[3], t->dtype, cols, factor);
    memset(to + cols * line, 0, (size_t)((pad - cols) * line));
}

/* The same rows as [strip][pad]; missing ones 0. */
static void pack_lines(const attn_grad_run *r, char *to, const void *const *rows, const attn_tensor *t, int64_t pad)
{
    int64_t line = pad * r->uk->real_size;
    for (int lane = 0; lane < r->uk->strip; lane++, to += line) {
        const attn_rows row = {rows[lane], 0, t->stride[3], t->dtype};
        if (rows[lane]) {
            r->uk->pack_v(to, 0, &row, 1, t->shape[3], pad);
        } else {
            memset(to, 0, (size_t)line);
        }
    }
}

/* Rows beyond those in use are not even read: they may hold anything. */
static void pack_one_strip(attn_grad_run *r, int strip, bool as_rows)
{
    const void *q[ATTN_MAX_STRIP] = {NULL}, *d_o[ATTN_MAX_STRIP] = {NULL};
    const int64_t width = r->uk->strip, real = r->uk->real_size, first = r->first_row + strip * width;
    const int64_t d_pad = r->plan->d_pad, dv_pad = r->plan->dv_pad;
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
        set_real(r->uk, r->lane_lse, strip * width + lane, lse);
        set_real(r->uk, r->lane_delta, strip * width + lane, delta);
    }
    pack_strip(r, r->qt + strip * width * d_pad * real, q, &r->p->q, d_pad, r->plan->scores.factor);
    pack_strip(r, r->dot + strip * width * dv_pad * real, d_o, &r->g->d_o, dv_pad, 1);
    if (as_rows) {
        pack_lines(r, r->q + strip * width * d_pad * real, q, &r->p->q, d_pad);
        pack_lines(r, r->d_o + strip * width * dv_pad * real, d_o, &r->g->d_o, dv_pad);
    }
}

void attn_grad_pack_rows(attn_grad_run *r, int64_t first, int64_t last, bool as_rows)
{
    r->first_row = first, r->last_row = last;
    r->strips = (int)((last - first + r->uk->strip - 1) / r->uk->strip);
    for (int i = 0; i < r->strips; i++) {
        r->mask[i] = attn_score_rows_mask(&r->scores, first + (int64_t)i * r->uk->strip, attn_grad_lanes(r, i));
        pack_one_strip(r, i, as_rows);
    }
}

/* ---- the tile -------------------------------------------------------------------------------------------------- */

/* The part of the block that the strip sees, its beginning aligned to what the kernels read at once. */
static attn_tile part_of_block(const attn_grad_run *r, int strip, attn_interval all, attn_interval *keys)
{
    attn_tile kind = attn_mask_tile(&r->mask[strip], all.lo, all.hi, keys);
    int64_t skipped = kind == ATTN_TILE_SKIP ? 0 : (keys->lo - all.lo) % 8;
    keys->lo -= skipped;
    return skipped ? ATTN_TILE_PARTIAL : kind;
}

void attn_grad_tile_run(attn_grad_run *r, int strip, attn_interval all, int64_t panel, attn_interval *keys)
{
    const attn_ukernel *uk = r->uk;
    const int64_t line = uk->strip * uk->real_size, first = r->first_row + (int64_t)strip * uk->strip;
    const attn_tile kind = part_of_block(r, strip, all, keys);
    if (kind == ATTN_TILE_SKIP) {
        *keys = (attn_interval){all.lo, all.lo};
        return;
    }
    const int64_t n = keys->hi - keys->lo, at = keys->lo - panel, row = keys->lo - all.lo;
    char *s = (char *)attn_grad_tile_at(r, r->s, strip) + row * line;
    char *dp = (char *)attn_grad_tile_at(r, r->dp, strip) + row * line;
    uk->qk(s, r->k, at, r->qt + strip * r->plan->d_pad * line, r->plan->d_pad, n);
    if (r->p->softcap > 0) {
        memcpy(r->products, s, (size_t)(n * line));
    }
    attn_score_tile_run(&r->scores, s, first, attn_grad_lanes(r, strip), *keys, kind);
    r->masked |= kind == ATTN_TILE_PARTIAL || r->p->mask.data || r->p->bias.data;
    if (r->careful) {
        attn_score_note_visible(uk, s, n, r->visible + ((int64_t)strip * ATTN_KEY_BLOCK + row) * uk->strip);
    }
    uk->qk(dp, r->v, at, r->dot + strip * r->plan->dv_pad * line, r->plan->dv_pad, n);
    if (r->p->dropout.on) {
        attn_score_drop(&r->scores, r->keep, first, keys->lo, n, false);
    }
    const attn_grad_tile tile = {
        .exponent = r->plan->scores.exponent,
        .factor = r->factor,
        .lse = r->lane_lse + strip * line,
        .delta = r->lane_delta + strip * line,
        .keep = r->p->dropout.on ? r->keep : NULL,
    };
    r->grad->softmax(s, dp, n, &tile);
    if (r->p->softcap > 0 && !r->natural) {
        r->grad->softcap(dp, r->products, n, r->plan->scores.scale, r->p->softcap);
    }
}

void attn_grad_tile_clear(const attn_grad_run *r, int strip, attn_interval all, attn_interval keys)
{
    const int64_t line = r->uk->strip * r->uk->real_size, width = r->uk->strip;
    const int64_t before = keys.lo - all.lo, after = ATTN_KEY_BLOCK - (keys.hi - all.lo);
    char *s = attn_grad_tile_at(r, r->s, strip), *dp = attn_grad_tile_at(r, r->dp, strip);
    memset(s, 0, (size_t)(before * line));
    memset(dp, 0, (size_t)(before * line));
    memset(s + (ATTN_KEY_BLOCK - after) * line, 0, (size_t)(after * line));
    memset(dp + (ATTN_KEY_BLOCK - after) * line, 0, (size_t)(after * line));
    if (r->careful) {
        unsigned char *visible = r->visible + (int64_t)strip * ATTN_KEY_BLOCK * width;
        memset(visible, 0, (size_t)(before * width));
        memset(visible + (ATTN_KEY_BLOCK - after) * width, 0, (size_t)(after * width));
    }
}
