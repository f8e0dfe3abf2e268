/*
 * tile.c: see tile.h.
 */
#include "cpu/backward/tile.h"
#include "cpu/keys.h"
#include <math.h>
#include <string.h>

/* An infinity of K or Q that is seen makes NaN, like a NaN: scores there are not finite, or, with a
 * softcap, dS is 0. So plus is minus. */
static void init_specials(attn_grad_item *item, char *base)
{
    const attn_grad_map *map = &item->plan->map;
    uint64_t *kt = (uint64_t *)(void *)(base + map->kt_specials),
             *q = (uint64_t *)(void *)(base + map->q_specials),
             *d_o = (uint64_t *)(void *)(base + map->d_o_specials);
    const int64_t d_o_words = item->grad->row_block * attn_special_words(item->plan->dv_pad);
    item->kt_specials = (attn_specials){kt, kt};
    item->q_specials = (attn_specials){q, q};
    item->d_o_specials = (attn_specials){d_o, d_o + d_o_words};
}

void attn_grad_item_init(attn_grad_item *item, const attn_grad_job *job, char *base)
{
    const attn_grad_plan *plan = job->plan;
    const attn_gradients *grads = job->grads;
    const attn_grad_map *map = &plan->map;
    char *const workspace = job->workspace;
    *item = (attn_grad_item){
        .plan = plan,
        .grads = grads,
        .problem = &grads->problem,
        .table = plan->table,
        .grad = plan->table->grad,
        .factor = grads->problem.scale,
        .lse = workspace + plan->lse_offset,
        .delta = workspace + plan->delta_offset,
        .k = base + map->k,
        .kt = base + map->kt,
        .v = base + map->v,
        .dk_sums = base + map->dk,
        .dv_sums = base + map->dv,
        .qt = base + map->qt,
        .d_o_t = base + map->d_o_t,
        .q = base + map->q,
        .d_o = base + map->d_o,
        .s = base + map->s,
        .dp = base + map->dp,
        .p_left = base + map->p,
        .ds_left = base + map->ds,
        .right = base + map->right,
        .products = base + map->products,
        .keep = base + map->keep,
        .plain = base + map->plain,
        .clean = base + map->clean,
        .seen = (uint64_t *)(void *)(base + map->seen),
        .lane_lse = base + map->lse,
        .lane_delta = base + map->delta,
        .ones = base + map->ones,
        .dq_sums = base + map->dqt,
        .dq_stacks = (attn_segment_stack *)(void *)(base + map->dq_stacks),
        .sums = (double *)(void *)(base + map->sums),
        .key_sums = (double *)(void *)(base + map->key_sums),
        .partial = (double *)(void *)(workspace + plan->partial_offset),
    };
    init_specials(item, base);
    item->scores = (attn_score_rows){
        .problem = item->problem, .table = item->table, .plan = &plan->scores, .seq = &item->seq};
    item->scores.all_lanes = !attn_grad_in_place(item);
    item->cells = plan->cells;
    if (item->cells.rows > 0) {
        item->cells.kind = (const unsigned char *)workspace + plan->cells_offset;
        item->scores.cells = &item->cells;
    }
    item->scores.bias = base + map->bias;
    attn_score_lanes(&item->scores, base + map->lanes);
    for (int lane = 0; lane < item->table->strip; lane++) {
        set_real(item->table, item->ones, lane, 1);
    }
}

/* ---- packing --------------------------------------------------------------------------------- */

/* Keys key .. end-1 of a run, into the panels of the block that begins at key `block`. */
static void pack_run(attn_grad_item *item, int64_t block, int64_t key, int64_t end, bool transposed)
{
    const attn_problem *problem = item->problem;
    const attn_ukernel *table = item->table;
    attn_rows k, v;
    attn_key_rows(problem, &problem->k, &item->seq, item->kv_head, key, &k);
    attn_key_rows(problem, &problem->v, &item->seq, item->kv_head, key, &v);
    const int64_t at = key - block, n = end - key;
    table->pack_k(attn_grad_panel(item, item->k, table->k_bytes(problem->d), block), at, &k, n,
                  problem->d);
    table->pack_k(attn_grad_panel(item, item->v, table->k_bytes(problem->dv), block), at, &v, n,
                  problem->dv);
    if (transposed && item->kt != item->k) {
        void *to = attn_grad_panel(item, item->kt, table->v_bytes(item->plan->d_pad), block);
        table->pack_v(to, at, &k, n, problem->d, item->plan->d_pad);
    }
}

void attn_grad_pack_keys(attn_grad_item *item, int64_t first, int64_t last, bool transposed)
{
    const int64_t size = item->table->key_block;
    for (int64_t key = first, end; key < last; key = end) {
        const int64_t block = key - (key - first) % size;
        end = attn_kv_run_end(item->problem, &item->seq, key, min64(block + size, last));
        pack_run(item, block, key, end, transposed);
    }
}

int attn_grad_lanes(const attn_grad_item *item, int strip_index)
{
    return (int)min64(item->last_row - item->first_row - (int64_t)strip_index * item->table->strip,
                      item->table->strip);
}

/* Words of the rows from `row` on. */
static attn_specials specials_from(attn_specials all, int64_t row, int64_t cols)
{
    const int64_t first = row * attn_special_words(cols);
    return (attn_specials){all.plus + first, all.minus + first};
}

/* Puts numbers of a strip that are not finite aside. */
static void clean_strip(attn_grad_item *item, int strip_index, void *q, void *d_o)
{
    const int64_t row = (int64_t)strip_index * item->table->strip, d = item->plan->d_pad,
                  dv = item->plan->dv_pad;
    const attn_specials of_q = specials_from(item->q_specials, row, d),
                        of_d_o = specials_from(item->d_o_specials, row, dv);
    item->q_special |= item->grad->clean_x(q, d, &of_q);
    item->d_o_special |= item->grad->clean_x(d_o, dv, &of_d_o);
}

/* Rows beyond those in use are never read: they may hold anything. */
static void pack_one_strip(attn_grad_item *item, int strip_index, bool as_rows)
{
    const void *q[ATTN_MAX_STRIP] = {NULL}, *d_o[ATTN_MAX_STRIP] = {NULL};
    const int width = item->table->strip;
    const int64_t first = item->first_row + (int64_t)strip_index * width;
    item->spoilt[strip_index] = 0;
    for (int lane = 0; lane < width; lane++) {
        double lse = INFINITY, delta = 0;
        lane_row row = attn_score_row(&item->scores, first + lane);
        if (lane < attn_grad_lanes(item, strip_index) && row.query < item->seq.nq_used) {
            int64_t i = item->seq.q_first + row.query,
                    at = (item->seq.tensor * item->problem->q.shape[1] + i) * item->problem->heads +
                         row.head;
            q[lane] = attn_at(&item->problem->q, item->seq.tensor, i, row.head, 0);
            d_o[lane] = attn_at(&item->grads->d_o, item->seq.tensor, i, row.head, 0);
            lse = get_real(item->table, item->lse, at),
            delta = get_real(item->table, item->delta, at);
        }
        if (isnan(lse)) { /* masked positions would be NaN too: see spoil() */
            item->spoilt[strip_index] |= (uint64_t)1 << lane;
            lse = INFINITY;
        }
        set_real(item->table, item->lane_lse, strip_index * width + lane, lse);
        set_real(item->table, item->lane_delta, strip_index * width + lane, delta);
    }
    const attn_tensor *q_tensor = &item->problem->q, *d_o_tensor = &item->grads->d_o;
    const int64_t d = item->problem->d, dv = item->problem->dv, d_pad = item->plan->d_pad,
                  dv_pad = item->plan->dv_pad;
    const double factor = item->plan->scores.factor;
    void *qt = attn_grad_strip(item->qt, item->table->q_bytes(d), strip_index),
         *d_o_t = attn_grad_strip(item->d_o_t, item->table->q_bytes(dv), strip_index);
    if (!as_rows) {
        item->table->pack_q(qt, q, q_tensor->stride[3], q_tensor->dtype, d, factor, width);
        item->table->pack_q(d_o_t, d_o, d_o_tensor->stride[3], d_o_tensor->dtype, dv, 1, width);
        return;
    }
    void *qx = attn_grad_strip(item->q, item->grad->x_bytes(d_pad), strip_index);
    void *d_ox = attn_grad_strip(item->d_o, item->grad->x_bytes(dv_pad), strip_index);
    item->grad->pack_both(qt, qx, q, q_tensor->stride[3], q_tensor->dtype, d, d_pad, factor);
    item->grad->pack_both(d_o_t, d_ox, d_o, d_o_tensor->stride[3], d_o_tensor->dtype, dv, dv_pad,
                          1);
    if (item->careful) {
        clean_strip(item, strip_index, qx, d_ox);
    }
}

void attn_grad_pack_rows(attn_grad_item *item, int64_t first, int64_t last, bool as_rows)
{
    item->first_row = first, item->last_row = last;
    item->q_special = item->d_o_special = false;
    item->strips = (int)((last - first + item->table->strip - 1) / item->table->strip);
    for (int i = 0; i < item->strips; i++) {
        const int64_t row = first + (int64_t)i * item->table->strip;
        item->rows[i] = attn_score_tile_rows(&item->scores, row, row + attn_grad_lanes(item, i),
                                             item->grad->key_step);
        pack_one_strip(item, i, as_rows);
    }
}

/* ---- the tile -------------------------------------------------------------------------------- */

/* Rows whose LSE is NaN: P and dS of the keys that they see are NaN, and no others. */
static void spoil(const attn_grad_item *item, int strip_index, char *s, int64_t n)
{
    const attn_ukernel *table = item->table;
    const int lanes = attn_grad_lanes(item, strip_index);
    for (int64_t key = 0; key < n; key++, s += table->strip * table->real_size) {
        uint64_t seen;
        attn_specials_seen(table, &seen, s, 1, lanes);
        seen &= item->spoilt[strip_index];
        attn_specials_add(table, s, lanes, seen, seen);
    }
}

/* Lanes of the last strip that are no rows, though products read them: 0 times an infinite key is
 * NaN, and P must be 0. */
static void hide_spare_lanes(const attn_grad_item *item, int lanes, char *s, int64_t n)
{
    const int64_t width = item->table->strip;
    for (int64_t key = 0; key < n; key++) {
        if (isnan(get_real(item->table, s, key * width + lanes))) { /* which of the two does not
                                                                     * matter */
            fill_reals(item->table, s + (key * width + lanes) * item->table->real_size,
                       width - lanes, -INFINITY);
        }
    }
}

/* Computes the scores of a tile. */
static void run_scores(attn_grad_item *item, int strip_index, int64_t block, attn_interval keys,
                       char *s)
{
    const attn_ukernel *table = item->table;
    const int64_t n = keys.hi - keys.lo, at = keys.lo - block,
                  first = item->first_row + (int64_t)strip_index * table->strip;
    const int lanes = attn_grad_lanes(item, strip_index);
    const attn_tile tile = attn_tile_at(&item->rows[strip_index], keys);
    table->qk(s, attn_grad_panel(item, item->k, table->k_bytes(item->problem->d), block), at,
              attn_grad_strip(item->qt, table->q_bytes(item->problem->d), strip_index),
              item->problem->d, n, attn_grad_width(item, strip_index));
    if (lanes % item->grad->row_step != 0) {
        hide_spare_lanes(item, lanes, s, n);
    }
    if (item->problem->softcap > 0) {
        memcpy(item->products, s, (size_t)(n * table->strip * table->real_size));
    }
    attn_score_tile_run(&item->scores, s, first, lanes, &tile);
    if (attn_grad_special(item)) {
        attn_specials_seen(table, item->seen + strip_index * (int64_t)table->key_block + at, s, n,
                           lanes);
    }
    if (item->spoilt[strip_index]) {
        spoil(item, strip_index, s, n);
    }
}

void attn_grad_tile_run(attn_grad_item *item, int strip_index, int64_t block, attn_interval keys,
                        const attn_grad_forms *to)
{
    const attn_ukernel *table = item->table;
    const int64_t line = table->strip * table->real_size,
                  first = item->first_row + (int64_t)strip_index * table->strip;
    const int64_t n = keys.hi - keys.lo, at = keys.lo - block;
    const bool capped = item->problem->softcap > 0 && !item->natural;
    char *s = attn_grad_tile_at(item, item->s, strip_index, at),
         *dp = attn_grad_tile_at(item, item->dp, strip_index, at);
    run_scores(item, strip_index, block, keys, s);
    item->grad->dp(dp, attn_grad_panel(item, item->v, table->k_bytes(item->problem->dv), block), at,
                   attn_grad_strip(item->d_o_t, table->q_bytes(item->problem->dv), strip_index),
                   item->problem->dv, n, attn_grad_width(item, strip_index));
    if (item->problem->dropout.on) {
        attn_score_drop(&item->scores, item->keep, 0, first, keys.lo, n, false);
    }
    const attn_grad_tile tile = {
        .exponent = item->plan->scores.exponent,
        .factor = item->factor,
        .lse = item->lane_lse + strip_index * line,
        .delta = item->lane_delta + strip_index * line,
        .keep = item->problem->dropout.on ? item->keep : NULL,
        .plain = item->d_scores ? item->plain : NULL,
    };
    if (to == NULL || capped) {
        item->grad->softmax(s, dp, n, &tile, attn_grad_width(item, strip_index));
    }
    if (capped) {
        item->grad->softcap(dp, item->products, n, item->plan->scores.scale, item->problem->softcap,
                            attn_grad_width(item, strip_index));
    }
    if (to) {
        item->grad->split(to, s, dp, n, capped ? NULL : &tile);
    }
}
