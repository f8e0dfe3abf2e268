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
 * over blocks of rows upwards, segment by segment (sums.h): the bits are the same.
 *
 * A masked position, one whose score is -inf, has P = dS = 0, and 0 x NaN is NaN. So an item with a
 * result that is not finite is done again, carefully: with the special numbers of K, Q and dO apart
 * from the products (cpu/specials.h). Not here: gradients of sinks, and of a bias with elements for
 * each query that heads, keys or sequences share (cpu/backward/shared_bias.c).
 */
#include "cpu/backward/backward.h"
#include "core/half.h"
#include "cpu/backward/bias.h"
#include "cpu/backward/sums.h"
#include "cpu/keys.h"
#include <math.h>
#include <string.h>

/* ---- products -------------------------------------------------------------------------------- */

static void *panel_kt(const attn_grad_item *item, int64_t block)
{
    return attn_grad_panel(item, item->kt, item->table->v_bytes(item->plan->d_pad), block);
}

/* Lanes of a strip that see the keys of the block. */
static uint64_t *strip_seen(const attn_grad_item *item, int strip_index)
{
    return item->seen + strip_index * (int64_t)item->table->key_block;
}

/* Adds the share of keys part.lo .. part.hi-1 to dQT of a strip, from its dS. */
static void add_dq(const attn_grad_item *item, int strip_index, int64_t block, attn_interval part)
{
    const attn_ukernel *table = item->table;
    const int64_t row = (int64_t)strip_index * table->strip, at = part.lo - block;
    const void *kt = item->careful ? item->clean : panel_kt(item, block);
    const void *ds =
        attn_grad_in_place(item) ? attn_grad_tile_at(item, item->dp, strip_index, at) : item->right;
    const int lanes = attn_grad_width(item, strip_index);
    char *dqt = item->dq_block + row * item->plan->d_pad * table->real_size;
    table->pv(dqt, kt, at, ds, item->plan->d_pad, part.hi - part.lo, item->ones, lanes);
    if (item->kt_special) {
        attn_specials_add_keys(table, dqt, &item->kt_specials, item->plan->d_pad,
                               strip_seen(item, strip_index), attn_grad_lanes(item, strip_index));
    }
}

/* Adds to dV and dK of some keys of the block that begins at key `block`, from the rows of the row
 * block that see them. */
static void add_keys(const attn_grad_item *item, attn_interval rows, int64_t block,
                     attn_interval keys)
{
    const int64_t d = item->plan->d_pad, dv = item->plan->dv_pad, n = keys.hi - keys.lo,
                  at = keys.lo - block;
    const int64_t key = keys.lo - item->first_key;
    const int first = (int)rows.lo, last = (int)rows.hi;
    char *dk = item->dk + key * d * item->table->real_size,
         *sum_v = item->dv + key * dv * item->table->real_size;
    item->grad->rows(sum_v, item->p_left, at, item->d_o, dv, n, first, last);
    item->grad->rows(dk, item->ds_left, at, item->q, d, n, first, last);
    if (item->d_o_special) {
        attn_specials_add_rows(item->table, sum_v, &item->d_o_specials, dv,
                               strip_seen(item, 0) + at, n, item->strips);
    }
    if (item->q_special) {
        attn_specials_add_rows(item->table, dk, &item->q_specials, d, strip_seen(item, 0) + at, n,
                               item->strips);
    }
}

/* The rows of the row block that see some of the keys, widened within their strips to multiples of
 * row_step. */
static attn_interval rows_of(const attn_grad_item *item, attn_interval keys)
{
    const attn_interval rows = {item->first_row, item->last_row};
    return attn_tile_rows_seeing(item->problem, &item->seq, keys, rows, item->scores.fold,
                                 item->grad->row_step);
}

/* Adds to dV and dK of all keys of a block; keys that the same rows see go together. */
static void add_dkv(const attn_grad_item *item, attn_interval all)
{
    const int64_t step = item->grad->key_step;
    for (int64_t key = all.lo, end; key < all.hi; key = end) {
        const attn_interval rows = rows_of(item, (attn_interval){key, min64(key + step, all.hi)});
        for (end = key + step; end < all.hi; end += step) {
            const attn_interval next =
                rows_of(item, (attn_interval){end, min64(end + step, all.hi)});
            if (next.lo != rows.lo || next.hi != rows.hi) {
                break;
            }
        }
        if (rows.lo < rows.hi) {
            add_keys(item, rows, all.lo, (attn_interval){key, min64(end, all.hi)});
        }
    }
}

/* Writes zeros between the end of a strip's part and the next multiple of key_step: other strips
 * may see those keys. */
static void clear_end(const attn_grad_item *item, int strip_index, int64_t block,
                      attn_interval part)
{
    const int64_t left = strip_index * attn_grad_left_bytes(item->table),
                  step = item->grad->key_step;
    const int64_t from = part.hi - block, to = (from + step - 1) / step * step;
    item->grad->clear(item->p_left + left, from, to);
    item->grad->clear(item->ds_left + left, from, to);
}

/* Computes P and dS of a strip for its part of a block, in all forms. */
static void run_strip(attn_grad_item *item, int strip_index, int64_t block, attn_interval part)
{
    const int64_t left = strip_index * attn_grad_left_bytes(item->table);
    attn_grad_forms to = {
        .p = item->p_left + left, .ds = item->ds_left + left, .right = item->right};
    for (attn_interval tile = {part.lo, part.lo}; tile.hi < part.hi;) {
        tile = attn_grad_first_tile(item, (attn_interval){tile.hi, part.hi});
        to.at = tile.lo - block, to.done = tile.lo - part.lo;
        attn_grad_tile_run(item, strip_index, block, tile, attn_grad_in_place(item) ? NULL : &to);
        if (item->d_scores) {
            attn_grad_bias_tile(item, strip_index, tile);
        }
    }
}

/* Puts numbers of the block's kt that are not finite aside; no row has seen a key yet. */
static void clean_keys(attn_grad_item *item, const attn_grad_pass *pass, attn_interval all)
{
    const attn_ukernel *table = item->table;
    item->kt_special =
        pass->dq && table->clean_v(item->clean, panel_kt(item, all.lo), 0, all.hi - all.lo,
                                   item->plan->d_pad, &item->kt_specials);
    if (attn_grad_special(item)) {
        memset(item->seen, 0, (size_t)(item->strips * table->key_block) * sizeof *item->seen);
    }
}

/* Runs the row block at hand against one block of keys. */
static void run_block(attn_grad_item *item, const attn_grad_pass *pass, attn_interval all)
{
    if (item->careful) {
        clean_keys(item, pass, all);
    }
    for (int i = 0; i < item->strips; i++) {
        const attn_interval part = attn_grad_part(item, i, all);
        if (part.lo < part.hi) {
            run_strip(item, i, all.lo, part);
            if (pass->dq) {
                add_dq(item, i, all.lo, part);
            }
            if (pass->dkv) {
                clear_end(item, i, all.lo, part);
            }
        }
    }
    if (pass->dkv) {
        add_dkv(item, all);
    }
}

/* ---- an item --------------------------------------------------------------------------------- */

/* Prefetches share `part` of `parts` of the rows of Q and dO. */
static void prefetch_rows(const attn_grad_item *item, attn_interval rows, int64_t part,
                          int64_t parts)
{
    const attn_tensor *t[2] = {&item->problem->q, &item->grads->d_o};
    const int64_t n = rows.hi - rows.lo;
    for (int64_t row = rows.lo + n * part / parts; row < rows.lo + n * (part + 1) / parts; row++) {
        const lane_row at = attn_score_row(&item->scores, row);
        for (int i = 0; i < 2; i++) {
            const char *from =
                attn_at(t[i], item->seq.tensor, item->seq.q_first + at.query, at.head, 0);
            attn_prefetch_row(&(attn_rows){from, 0, t[i]->stride[3], t[i]->dtype, NULL, {0}}, 0,
                              t[i]->shape[3]);
        }
    }
}

/* Packs the panels of the block that begins at `key`, of keys below `last`, unless they are packed,
 * and prefetches the rows of the next block. */
static void need_keys(attn_grad_item *item, const attn_grad_pass *pass, int64_t key, int64_t last)
{
    const int64_t size = item->table->key_block;
    const uint64_t bit = (uint64_t)1 << (key - item->first_key) / size;
    if ((item->ready & bit) == 0) {
        attn_grad_pack_keys(item, key, min64(key + size, last), pass->dq);
        item->packed = max64(item->packed, key + size);
        item->ready |= bit;
    }
    const int64_t next = max64(item->fetched, item->packed),
                  end = min64(item->packed + 2 * size, last);
    if (next < end) {
        attn_prefetch_keys(item->problem, &item->problem->k, &item->seq, item->kv_head, next,
                           min64(next + size, end));
        attn_prefetch_keys(item->problem, &item->problem->v, &item->seq, item->kv_head, next,
                           min64(next + size, end));
        item->fetched = next + size;
    }
}

/* Runs the row block at hand against the keys of its walk that lie below `last`. */
static void run_row_block(attn_grad_item *item, const attn_grad_pass *pass, attn_interval rows,
                          attn_walk walk, int64_t last)
{
    const int64_t size = walk.size, end = item->last_row;
    const int64_t begin = walk.left.lo / size, blocks = (walk.left.hi - 1) / size + 1 - begin;
    const attn_interval next = {end, min64(end + item->grad->row_block, rows.hi)};
    while (attn_walk_next(&walk)) {
        need_keys(item, pass, walk.first, last);
        prefetch_rows(item, next, walk.first / size - begin, blocks);
        run_block(item, pass, (attn_interval){walk.first, min64(walk.first + size, last)});
    }
}

/* Opens the sums to which products of the row block and the keys at hand are added. */
static void enter_segments(attn_grad_item *item, const attn_grad_pass *pass, int64_t item_row)
{
    if (pass->dq) {
        attn_grad_dq_enter(item, item_row, item->first_key / item->plan->dq_segment);
    }
    if (pass->dkv) {
        attn_grad_dkv_enter(item, item->first_row / item->plan->dkv_segment);
    }
}

/* Runs keys first .. last-1, whose panels fit the scratch, against all rows of the item. */
static void run_keys(attn_grad_item *item, const attn_grad_pass *pass, attn_interval rows,
                     int64_t first, int64_t last)
{
    const int64_t used = min64(last, item->seq.nk);
    item->first_key = item->packed = item->fetched = first, item->ready = 0;
    for (int64_t row = rows.lo; row < rows.hi && (first < used || pass->d_scores);
         row += item->grad->row_block) {
        const int64_t end = min64(row + item->grad->row_block, rows.hi);
        const attn_tile_rows seeing =
            attn_score_tile_rows(&item->scores, row, end, item->grad->key_step);
        const attn_tile tile = attn_tile_at(&seeing, (attn_interval){first, used});
        /* FULL says that every row sees the tile's keys, which may be fewer than first .. last-1 */
        const bool whole =
            tile.kind == ATTN_TILE_FULL && tile.keys.lo == first && tile.keys.hi == last;
        if (pass->d_scores && !whole) {
            attn_grad_bias_clear(item, (attn_interval){row, end}, (attn_interval){first, last});
        }
        if (tile.kind != ATTN_TILE_SKIP) {
            attn_grad_pack_rows(item, row, end, pass->dkv);
            enter_segments(item, pass, rows.lo);
            run_row_block(item, pass, rows,
                          attn_walk_keys(&seeing, tile.keys, item->table->key_block), used);
        }
    }
}

static bool store_keys(attn_grad_item *item, int64_t first, int64_t last)
{
    attn_grad_dkv_leave(item);
    return attn_grad_store_keys(item, first, last);
}

static bool store_rows(attn_grad_item *item, attn_interval rows)
{
    bool finite = true;
    for (int64_t row = rows.lo; row < rows.hi; row += item->grad->row_block) {
        attn_grad_dq_leave(item, rows, row);
        finite &= attn_grad_store_rows(item, row, min64(row + item->grad->row_block, rows.hi));
    }
    return finite;
}

/* Runs all of the item; false if a result is not finite. */
static bool run_item(attn_grad_item *item, const attn_grad_pass *pass, attn_interval rows,
                     attn_interval keys)
{
    bool finite = true;
    attn_grad_dq_begin(item, pass->dq ? rows : (attn_interval){0, 0});
    for (int64_t first = keys.lo, last; first < keys.hi; first = last) {
        const int64_t size = item->plan->dq_segment, segment_end = (first / size + 1) * size;
        last = min64(first + item->plan->keys, min64(segment_end, keys.hi));
        attn_grad_dkv_begin(item);
        if (pass->d_scores) {
            attn_grad_bias_begin(item);
        }
        run_keys(item, pass, rows, first, last);
        if (pass->d_scores) {
            attn_grad_bias_end(item, first, last);
        }
        finite = (!pass->dkv || store_keys(item, first, last)) && finite;
    }
    return (!pass->dq || store_rows(item, rows)) && finite;
}

/* The pass's items, whose table is filled if sequences have lengths of their own. */
static attn_schedule schedule_of(const attn_grad_job *job)
{
    const attn_grad_pass *pass = &job->plan->pass[job->part];
    attn_schedule schedule = pass->schedule;
    if (job->grads->problem.varlen) {
        schedule.first_item = (const int64_t *)(const void *)(job->workspace + pass->items_offset);
    }
    return schedule;
}

static void pass_task(const void *arg, int64_t index, int32_t thread)
{
    const attn_grad_job *job = arg;
    const attn_grad_pass *pass = &job->plan->pass[job->part];
    const attn_schedule schedule = schedule_of(job);
    attn_item item = attn_schedule_item(&schedule, &job->grads->problem, index);
    attn_grad_item work;
    attn_grad_item_init(&work, job, attn_grad_scratch(job, index, thread));
    work.seq = attn_problem_sequence(work.problem, item.sequence);
    work.kv_head = item.kv_head;
    work.d_scores = pass->d_scores;
    work.scores.first_head = item.kv_head * work.problem->group,
    work.scores.fold = work.problem->group;
    attn_interval rows = {0, work.seq.nq * work.problem->group}, keys = {0, work.seq.k_rows};
    if (pass->dq != pass->dkv) {
        attn_interval *mine = pass->dq ? &rows : &keys;
        *mine = (attn_interval){item.first_row, min64(item.last_row, mine->hi)};
    }
    if (!run_item(&work, pass, rows, keys)) {
        work.careful = true;
        (void)run_item(&work, pass, rows, keys);
    }
}

/* ---- the parallel loops ---------------------------------------------------------------------- */

static void fill_table(const attn_grad_pass *pass, const attn_problem *problem, int64_t *first_item)
{
    int64_t items = 0;
    for (int64_t b = 0; b < pass->schedule.sequences; b++) {
        attn_sequence sequence = attn_problem_sequence(problem, b);
        first_item[b] = items;
        items += attn_grad_blocks(pass, problem, &sequence) * problem->kv_heads;
    }
    first_item[pass->schedule.sequences] = items;
}

void attn_cpu_backward(const attn_grad_plan *plan, const attn_gradients *grads,
                       const attn_executor *executor, void *workspace)
{
    attn_grad_job job = {.plan = plan, .grads = grads, .workspace = workspace};
    attn_cells cells = plan->cells;
    attn_cells_fill(&cells, &grads->problem, executor, job.workspace + plan->cells_offset);
    attn_grad_delta(plan, grads, executor, workspace);
    for (; job.part < plan->passes; job.part++) {
        const attn_grad_pass *pass = &plan->pass[job.part];
        if (grads->problem.varlen) {
            fill_table(pass, &grads->problem,
                       (int64_t *)(void *)(job.workspace + pass->items_offset));
        }
        job.tasks = pass->schedule.items;
        attn_tasks_run(executor, job.tasks, pass_task, &job, plan->table);
    }
    attn_grad_bias_finish(plan, grads, executor, workspace);
    attn_grad_shared_bias(plan, grads, executor, workspace);
    attn_grad_sinks(plan, grads, executor, workspace);
}
