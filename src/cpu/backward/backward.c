/*
 * backward.c: the backward pass on the CPU (FlashAttention-2, algorithm 2), with one owner for
 * every output.
 *
 *     rows:   lse, delta = dO . O - dLSE                     of all rows, a loop of its own
 *     for a few blocks of keys (panels and sums stay in the cache):
 *         for each block of row_block query rows that sees them:
 *             pack Q, dO
 *             for each block of keys:
 *                 pack K, V, the first time
 *                 for each strip:  tiles of S = K QT, dP = V dOT;  P and dS   (tile.c)
 *                                  d_bias = dS or sums of it                  (bias.c)
 *                                  dQT += K^T dS
 *                 dV += P dO, dK += dS Q            of rows that see the keys
 *         store dK, dV
 *     store dQ
 *
 * An item is one KV head with its group, and owns all its gradients. If that leaves threads idle,
 * the same loop runs twice: over items that own dK and dV of some keys, and over items that own dQ
 * of some rows. Either way dQ of a row is summed over blocks of keys upwards, dK and dV of a key
 * over blocks of rows upwards: the bits are the same.
 *
 * A masked position, one whose score is -inf, has P = dS = 0, and 0 x NaN is NaN. So an item with a
 * non-finite result is done again without the products of such positions, and its non-finite
 * elements are replaced. Not here: gradients of sinks, and of a bias with elements for each query
 * that heads, keys or sequences share (cpu/backward/shared_bias.c).
 */
#include "cpu/backward/backward.h"
#include "core/half.h"
#include "cpu/backward/bias.h"
#include "cpu/keys.h"
#include <math.h>
#include <string.h>

/* ---- products -------------------------------------------------------------------------------- */

/* Adds to dQT of a strip, from its dS of keys part.lo .. part.hi-1. item_row: the first row of
 * dqt. */
static void add_dq(const attn_grad_run *r, int strip, int64_t item_row, int64_t block,
                   attn_interval part)
{
    const attn_ukernel *uk = r->uk;
    const int64_t row = r->first_row - item_row + (int64_t)strip * uk->strip, at = part.lo - block;
    const void *kt = attn_grad_panel(r, r->kt, uk->v_bytes(r->plan->d_pad), block);
    const void *ds = attn_grad_in_place(r) ? attn_grad_tile_at(r, r->dp, strip, at) : r->right;
    const int lanes = attn_grad_width(r, strip);
    char *dqt = r->dqt + row * r->plan->d_pad * uk->real_size;
    if (r->careful) {
        const unsigned char *visible =
            r->visible + (strip * (int64_t)uk->key_block + at) * uk->strip;
        uk->pv_careful(dqt, kt, at, ds, r->plan->d_pad, part.hi - part.lo, r->ones, visible, lanes);
    } else {
        uk->pv(dqt, kt, at, ds, r->plan->d_pad, part.hi - part.lo, r->ones, lanes);
    }
}

/* Adds to dV and dK of some keys of the block that begins at key `block`, from the rows of the row
 * block that see them. */
static void add_keys(const attn_grad_run *r, attn_interval rows, int64_t block, attn_interval keys)
{
    const int64_t d = r->plan->d_pad, dv = r->plan->dv_pad, n = keys.hi - keys.lo,
                  at = keys.lo - block;
    const int64_t key = keys.lo - r->first_key;
    const int first = (int)rows.lo, last = (int)rows.hi;
    char *dk = r->dk + key * d * r->uk->real_size, *sum_v = r->dv + key * dv * r->uk->real_size;
    if (r->careful) {
        r->grad->rows_careful(sum_v, r->p_left, at, r->d_o, dv, n, first, last, r->visible);
        r->grad->rows_careful(dk, r->ds_left, at, r->q, d, n, first, last, r->visible);
    } else {
        r->grad->rows(sum_v, r->p_left, at, r->d_o, dv, n, first, last);
        r->grad->rows(dk, r->ds_left, at, r->q, d, n, first, last);
    }
}

/* The rows of the row block that see some of the keys, widened within their strips to multiples of
 * row_step. */
static attn_interval rows_of(const attn_grad_run *r, attn_interval keys)
{
    const attn_interval queries = attn_mask_queries(r->p, &r->seq, keys.lo, keys.hi);
    const int64_t fold = r->scores.fold, step = r->grad->row_step;
    const int64_t lo = max64(queries.lo * fold, r->first_row),
                  hi = min64(queries.hi * fold, r->last_row);
    if (lo >= hi) {
        return (attn_interval){0, 0};
    }
    return (attn_interval){(lo - r->first_row) / step * step,
                           (hi - r->first_row + step - 1) / step * step};
}

/* Adds to dV and dK of all keys of a block; keys that the same rows see go together. */
static void add_dkv(const attn_grad_run *r, attn_interval all)
{
    const int64_t step = r->grad->key_step;
    for (int64_t key = all.lo, end; key < all.hi; key = end) {
        const attn_interval rows = rows_of(r, (attn_interval){key, min64(key + step, all.hi)});
        for (end = key + step; end < all.hi; end += step) {
            const attn_interval next = rows_of(r, (attn_interval){end, min64(end + step, all.hi)});
            if (next.lo != rows.lo || next.hi != rows.hi) {
                break;
            }
        }
        if (rows.lo < rows.hi) {
            add_keys(r, rows, all.lo, (attn_interval){key, min64(end, all.hi)});
        }
    }
}

/* Writes zeros between the end of a strip's part and the next multiple of key_step: other strips
 * may see those keys. */
static void clear_end(const attn_grad_run *r, int strip, int64_t block, attn_interval part)
{
    const int64_t left = strip * attn_grad_left_bytes(r->uk), step = r->grad->key_step,
                  width = r->uk->strip;
    const int64_t from = part.hi - block, to = (from + step - 1) / step * step;
    r->grad->clear(r->p_left + left, from, to);
    r->grad->clear(r->ds_left + left, from, to);
    if (r->careful) {
        memset(r->visible + (strip * (int64_t)r->uk->key_block + from) * width, 0,
               (size_t)((to - from) * width));
    }
}

/* Computes P and dS of a strip for its part of a block, in all forms. */
static void run_strip(attn_grad_run *r, int strip, int64_t block, attn_interval part)
{
    const int64_t left = strip * attn_grad_left_bytes(r->uk);
    attn_grad_forms to = {.p = r->p_left + left, .ds = r->ds_left + left, .right = r->right};
    for (attn_interval tile = {part.lo, part.lo}; tile.hi < part.hi;) {
        tile = attn_grad_first_tile(r, (attn_interval){tile.hi, part.hi});
        to.at = tile.lo - block, to.done = tile.lo - part.lo;
        attn_grad_tile_run(r, strip, block, tile, attn_grad_in_place(r) ? NULL : &to);
        if (r->d_scores) {
            attn_grad_bias_tile(r, strip, tile);
        }
    }
}

/* Runs the row block at hand against one block of keys. */
static void run_block(attn_grad_run *r, const attn_grad_pass *pass, int64_t item_row,
                      attn_interval all)
{
    for (int i = 0; i < r->strips; i++) {
        const attn_interval part = attn_grad_part(r, i, all);
        if (part.lo < part.hi) {
            run_strip(r, i, all.lo, part);
            if (pass->dq) {
                add_dq(r, i, item_row, all.lo, part);
            }
            if (pass->dkv) {
                clear_end(r, i, all.lo, part);
            }
        }
    }
    if (pass->dkv) {
        add_dkv(r, all);
    }
}

/* ---- an item --------------------------------------------------------------------------------- */

/* Prefetches share `part` of `parts` of the rows of Q and dO. */
static void prefetch_rows(const attn_grad_run *r, attn_interval rows, int64_t part, int64_t parts)
{
    const attn_tensor *t[2] = {&r->p->q, &r->g->d_o};
    const int64_t n = rows.hi - rows.lo;
    for (int64_t row = rows.lo + n * part / parts; row < rows.lo + n * (part + 1) / parts; row++) {
        const lane_row at = attn_score_row(&r->scores, row);
        for (int i = 0; i < 2; i++) {
            const char *from = attn_at(t[i], r->seq.tensor, r->seq.q_first + at.query, at.head, 0);
            attn_prefetch_row(&(attn_rows){from, 0, t[i]->stride[3], t[i]->dtype}, 0,
                              t[i]->shape[3]);
        }
    }
}

/* Packs the panels of the block that begins at `key`, of keys below `last`, unless they are packed,
 * and prefetches the rows of the next block. */
static void need_keys(attn_grad_run *r, const attn_grad_pass *pass, int64_t key, int64_t last)
{
    const int64_t size = r->uk->key_block;
    if (key >= r->packed) {
        attn_grad_pack_keys(r, key, min64(key + size, last), pass->dq);
        r->packed = key + size;
    }
    const int64_t next = max64(r->fetched, r->packed), end = min64(r->packed + 2 * size, last);
    if (next < end) {
        attn_prefetch_keys(r->p, &r->p->k, &r->seq, r->kv_head, next, min64(next + size, end));
        attn_prefetch_keys(r->p, &r->p->v, &r->seq, r->kv_head, next, min64(next + size, end));
        r->fetched = next + size;
    }
}

/* Runs the row block at hand against its keys below `last`. */
static void run_row_block(attn_grad_run *r, const attn_grad_pass *pass, attn_interval rows,
                          attn_interval keys, int64_t last)
{
    const int64_t size = r->uk->key_block, end = r->last_row, begin = keys.lo - keys.lo % size;
    const attn_interval next = {end, min64(end + r->grad->row_block, rows.hi)};
    for (int64_t key = begin; key < keys.hi; key += size) {
        const attn_interval all = {key, min64(key + size, last)};
        need_keys(r, pass, key, last);
        prefetch_rows(r, next, (key - begin) / size, (keys.hi - begin + size - 1) / size);
        if (attn_score_mask_kind(&r->scores, r->first_row, (int)(end - r->first_row), all) !=
            ATTN_TILE_SKIP) {
            run_block(r, pass, rows.lo, all);
        }
    }
}

/* Runs keys first .. last-1, whose panels fit the scratch, against all rows of the item. */
static void run_keys(attn_grad_run *r, const attn_grad_pass *pass, attn_interval rows,
                     int64_t first, int64_t last)
{
    const int64_t used = min64(last, r->seq.nk);
    r->first_key = r->packed = r->fetched = first;
    for (int64_t row = rows.lo; row < rows.hi && (first < used || pass->d_scores);
         row += r->grad->row_block) {
        const int64_t end = min64(row + r->grad->row_block, rows.hi),
                      queries = (end - 1) / r->p->group + 1;
        const attn_rows_mask mask = attn_mask_range(r->p, &r->seq, row / r->p->group, queries);
        attn_interval keys;
        const attn_tile tile = attn_mask_tile(&mask, first, used, &keys);
        /* FULL says that every row sees `keys`, which may be fewer than first .. last-1 */
        const bool whole = tile == ATTN_TILE_FULL && keys.lo == first && keys.hi == last &&
                           queries <= r->seq.nq_used;
        if (pass->d_scores && (!whole || r->scores.cells)) {
            attn_grad_bias_clear(r, (attn_interval){row, end}, (attn_interval){first, last});
        }
        if (tile != ATTN_TILE_SKIP) {
            attn_grad_pack_rows(r, row, end, pass->dkv);
            run_row_block(r, pass, rows, keys, used);
        }
    }
}

/* Runs all of the item; false if a result is not finite. */
static bool run_item(attn_grad_run *r, const attn_grad_pass *pass, attn_interval rows,
                     attn_interval keys)
{
    const int64_t real = r->uk->real_size, strip = r->uk->strip;
    bool finite = true;
    if (pass->dq) {
        int64_t room = (rows.hi - rows.lo + strip - 1) / strip * strip;
        memset(r->dqt, 0, (size_t)(room * r->plan->d_pad * real));
    }
    for (int64_t first = keys.lo; first < keys.hi; first += r->plan->keys) {
        int64_t last = min64(first + r->plan->keys, keys.hi);
        if (pass->dkv) {
            memset(r->dk, 0, (size_t)(r->plan->keys * r->plan->d_pad * real));
            memset(r->dv, 0, (size_t)(r->plan->keys * r->plan->dv_pad * real));
        }
        if (pass->d_scores) {
            attn_grad_bias_begin(r);
        }
        run_keys(r, pass, rows, first, last);
        if (pass->d_scores) {
            attn_grad_bias_end(r, first, last);
        }
        finite = (!pass->dkv || attn_grad_store_keys(r, first, last)) && finite;
    }
    return (!pass->dq || attn_grad_store_rows(r, rows.lo, rows.hi)) && finite;
}

/* The pass's items, whose table is filled if sequences have lengths of their own. */
static attn_schedule schedule_of(const attn_grad_job *j)
{
    const attn_grad_pass *pass = &j->plan->pass[j->part];
    attn_schedule schedule = pass->schedule;
    if (j->g->p.varlen) {
        schedule.first_item = (const int64_t *)(const void *)(j->workspace + pass->table);
    }
    return schedule;
}

static void pass_task(const void *job, int64_t index, int32_t thread)
{
    const attn_grad_job *j = job;
    const attn_grad_pass *pass = &j->plan->pass[j->part];
    const attn_schedule schedule = schedule_of(j);
    attn_item item = attn_schedule_item(&schedule, &j->g->p, index);
    attn_grad_run r;
    attn_grad_run_init(&r, j->plan, j->g, j->workspace, thread);
    r.seq = attn_problem_sequence(r.p, item.sequence);
    r.kv_head = item.kv_head;
    r.d_scores = pass->d_scores;
    r.scores.first_head = item.kv_head * r.p->group, r.scores.fold = r.p->group;
    attn_interval rows = {0, r.seq.nq * r.p->group}, keys = {0, r.seq.k_rows};
    if (pass->dq != pass->dkv) {
        attn_interval *mine = pass->dq ? &rows : &keys;
        *mine = (attn_interval){item.first_row, min64(item.last_row, mine->hi)};
    }
    if (!run_item(&r, pass, rows, keys)) {
        r.careful = true;
        (void)run_item(&r, pass, rows, keys);
    }
}

/* ---- the parallel loops ---------------------------------------------------------------------- */

static void fill_table(const attn_grad_pass *pass, const attn_problem *p, int64_t *first_item)
{
    int64_t items = 0;
    for (int64_t b = 0; b < pass->schedule.sequences; b++) {
        attn_sequence s = attn_problem_sequence(p, b);
        first_item[b] = items;
        items += attn_grad_blocks(pass, p, &s) * p->kv_heads;
    }
    first_item[pass->schedule.sequences] = items;
}

void attn_cpu_backward(const attn_grad_plan *plan, const attn_gradients *g,
                       const attn_executor *executor, void *workspace)
{
    attn_grad_job job = {.plan = plan, .g = g, .workspace = workspace};
    attn_cells cells = plan->cells;
    attn_cells_fill(&cells, &g->p, executor, job.workspace + plan->cells_at);
    attn_grad_delta(plan, g, executor, workspace);
    for (; job.part < plan->passes; job.part++) {
        const attn_grad_pass *pass = &plan->pass[job.part];
        if (g->p.varlen) {
            fill_table(pass, &g->p, (int64_t *)(void *)(job.workspace + pass->table));
        }
        attn_tasks_run(executor, pass->schedule.items, pass_task, &job, plan->uk);
    }
    attn_grad_bias_finish(plan, g, executor, workspace);
    attn_grad_shared_bias(plan, g, executor, workspace);
    attn_grad_sinks(plan, g, executor, workspace);
}
