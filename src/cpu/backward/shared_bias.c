/*
 * shared_bias.c: the gradient of a bias with elements for each query that heads, keys or sequences
 * share, or whose elements share memory (fold.h), by sums over the tiles of dS
 * (cpu/backward/tile.c), computed a second time here. Other shapes are the business of
 * cpu/backward/bias.c.
 *
 * An item owns a row block of queries of one (batch, head) of the shape, and sums over all
 * sequences, heads and keys that share its elements, in double precision and in a fixed order:
 *
 *     for each block of keys:
 *         for each sequence, and each head or KV head with its group, that share the elements:
 *             for each row block of the item's queries: tiles of dS, added into sums[key][query]
 *
 * Nothing of the size Nq x Nk exists but the bias gradient itself, if it has that shape.
 */
#include "core/half.h"
#include "cpu/backward/backward.h"
#include "cpu/backward/tile.h"
#include <math.h>
#include <string.h>

/* An item: its element (b, h) of the shape, its queries, and the run that computes tiles. */
typedef struct fold_item {
    int64_t b, h;
    attn_interval queries;
    bool per_key;   /* else one element for all keys */
    double *folded; /* sums of elements that share memory; NULL: none do */
    attn_grad_item run;
} fold_item;

/* ---- sums ------------------------------------------------------------------------------------ */

/* Adds a row of the tile to the sums of its key, sums[query]. One lane after the other, so that the
 * width of strips does not matter. */
static void add_row(const fold_item *item, const double *value, const int64_t *query, int lanes,
                    double *sums)
{
    double *const mine = sums + query[0] - item->queries.lo;
    if (item->run.scores.fold == 1) { /* each lane has a query of its own */
        for (int lane = 0; lane < lanes; lane++) {
            mine[lane] += value[lane];
        }
        return;
    }
    for (int lane = 0; lane < lanes; lane++) {
        mine[query[lane] - query[0]] += value[lane];
    }
}

static void add_tile(fold_item *item, int strip_index, int64_t block, attn_interval keys)
{
    attn_grad_item *work = &item->run;
    const int lanes = attn_grad_lanes(work, strip_index);
    const int64_t line = work->table->strip * work->table->real_size;
    const char *ds = attn_grad_tile_at(work, work->dp, strip_index, keys.lo - block);
    int64_t query[ATTN_MAX_STRIP];
    attn_grad_tile_run(work, strip_index, block, keys, NULL);
    for (int lane = 0; lane < lanes; lane++) {
        query[lane] =
            attn_score_row(&work->scores,
                           work->first_row + (int64_t)strip_index * work->table->strip + lane)
                .query;
    }
    for (int64_t key = keys.lo; key < keys.hi; key++, ds += line) {
        double value[ATTN_MAX_STRIP];
        get_reals(work->table, value, ds, lanes);
        add_row(item, value, query, lanes, work->sums + (key - block) * work->grad->row_block);
    }
}

static void add_strip(fold_item *item, int strip_index, attn_interval all)
{
    const attn_interval part = attn_grad_part(&item->run, strip_index, all);
    for (attn_interval tile = {part.lo, part.lo}; tile.hi < part.hi;) {
        tile = attn_grad_first_tile(&item->run, (attn_interval){tile.hi, part.hi});
        add_tile(item, strip_index, all.lo, tile);
    }
}

/* Runs the item's queries of one sequence and of heads first_head .. first_head + fold - 1 against
 * one block of keys. */
static void add_block(fold_item *item, int64_t b, int64_t first_head, int64_t fold, int64_t key)
{
    attn_grad_item *work = &item->run;
    work->seq = attn_problem_sequence(work->problem, b);
    work->scores.first_head = first_head, work->scores.fold = fold;
    work->kv_head = first_head / work->problem->group;
    const attn_interval all = {key, min64(key + work->table->key_block, work->seq.nk)};
    const attn_interval rows = {item->queries.lo * fold,
                                min64(item->queries.hi, work->seq.nq_used) * fold};
    bool packed = false;
    for (int64_t row = rows.lo; row < rows.hi && all.lo < all.hi; row += work->grad->row_block) {
        const int64_t end = min64(row + work->grad->row_block, rows.hi);
        const attn_tile_rows seeing =
            attn_score_tile_rows(&work->scores, row, end, work->grad->key_step);
        if (attn_tile_at(&seeing, all).kind == ATTN_TILE_SKIP) {
            continue;
        }
        if (!packed) {
            work->first_key = all.lo;
            attn_grad_pack_keys(work, all.lo, all.hi, false);
            packed = true;
        }
        attn_grad_pack_rows(work, row, end, false);
        for (int strip_index = 0; strip_index < work->strips; strip_index++) {
            add_strip(item, strip_index, all);
        }
    }
}

/* Runs all sequences and heads that share the item's elements. */
static void add_shared(fold_item *item, int64_t key)
{
    const attn_problem *problem = item->run.problem;
    const bool all_b = item->run.grads->d_bias.shape[0] == 1,
               all_h = item->run.grads->d_bias.shape[1] == 1;
    for (int64_t b = all_b ? 0 : item->b; b < (all_b ? problem->batch : item->b + 1); b++) {
        /* 0 without query heads */
        for (int64_t kv = 0; all_h && problem->group > 0 && kv < problem->kv_heads; kv++) {
            add_block(item, b, kv * problem->group, problem->group, key);
        }
        if (!all_h) {
            add_block(item, b, item->h, 1, key);
        }
    }
}

/* ---- results --------------------------------------------------------------------------------- */

/* Adds the sums of keys first .. last-1 to the sums of their places. */
static void fold_sums(const fold_item *item, int64_t first, int64_t last)
{
    const attn_fold *fold = &item->run.plan->fold;
    const int64_t row = item->run.grad->row_block;
    for (int64_t i = item->queries.lo; i < item->queries.hi; i++) {
        const double *from = item->run.sums + i - item->queries.lo;
        double *to = item->folded + attn_fold_at(fold, item->b, item->h, i, first);
        for (int64_t key = first; key < last; key++, from += row, to += fold->step[3]) {
            *to += *from;
        }
    }
}

/* The same to their places. */
static void store_sums(const fold_item *item, int64_t first, int64_t last)
{
    if (item->folded) {
        fold_sums(item, first, last);
        return;
    }
    const attn_tensor *out = &item->run.grads->d_bias;
    const int64_t row = item->run.grad->row_block, step = attn_axis_step(out, 3);
    for (int64_t i = item->queries.lo; i < item->queries.hi; i++) {
        char *to = attn_at(out, item->b, item->h, i, first);
        for (int64_t key = first; key < last; key++, to += step) {
            attn_element_from_f64(to, out->dtype,
                                  item->run.sums[(key - first) * row + i - item->queries.lo]);
        }
    }
}

static int64_t most_keys(const attn_problem *problem)
{
    int64_t most = 0;
    for (int64_t b = 0; b < (problem->varlen ? problem->batch : problem->batch > 0 ? 1 : 0); b++) {
        most = max64(most, attn_declared_length(&problem->cu_k, &problem->k, b));
    }
    return most;
}

/* Adds the sums of all keys of a block into the line after them, key by key. */
static void add_keys(const fold_item *item)
{
    const int64_t row = item->run.grad->row_block, all = item->run.table->key_block * row;
    for (int64_t i = 0; i < all; i++) {
        item->run.sums[all + i % row] += item->run.sums[i];
    }
}

static void run_item(fold_item *item)
{
    const int64_t block = item->run.table->key_block, row = item->run.grad->row_block;
    const size_t line = (size_t)row * sizeof(double), bytes = (size_t)block * line;
    const int64_t end =
        item->per_key ? item->run.grads->d_bias.shape[3] : most_keys(item->run.problem);
    memset(item->run.sums, 0, bytes + line);
    for (int64_t key = 0; key < end; key += block) {
        add_shared(item, key);
        if (item->per_key) {
            store_sums(item, key, min64(key + block, end));
        } else {
            add_keys(item);
        }
        memset(item->run.sums, 0, bytes);
    }
    if (!item->per_key) {
        memcpy(item->run.sums, item->run.sums + block * row, line);
        store_sums(item, 0, 1);
    }
}

/* Row blocks of one (batch, head) of the shape. */
static int64_t blocks_of(const attn_grad_plan *plan, const attn_gradients *grads)
{
    const int64_t rows = plan->table->grad->row_block;
    return (grads->d_bias.shape[2] + rows - 1) / rows;
}

int64_t attn_grad_shared_tasks(const attn_grad_plan *plan, const attn_gradients *grads)
{
    const int64_t *shape = grads->d_bias.shape;
    return plan->fold.chunks > 0 ? attn_fold_owners(&plan->fold) * plan->fold.chunks
           : plan->shared_bias   ? shape[0] * shape[1] * blocks_of(plan, grads)
                                 : 0;
}

/* A row block of one (batch, head) of the shape. */
typedef struct place {
    int64_t b, h, block;
} place;

/* Computes the sums of a block, to their places or into the sums of a fold. */
static void run_block(const attn_grad_job *job, char *scratch, place at, double *folded)
{
    const attn_tensor *out = &job->grads->d_bias;
    const int64_t rows = job->plan->table->grad->row_block;
    fold_item item = {.b = at.b, .h = at.h, .per_key = out->shape[3] != 1, .folded = folded};
    item.queries.lo = at.block * rows;
    item.queries.hi = min64(item.queries.lo + rows, out->shape[2]);
    attn_grad_item_init(&item.run, job, scratch);
    item.run.natural = true, item.run.factor = 1;
    run_item(&item);
}

/* index: (batch, head, block) of the shape. */
static void sum_task(const void *arg, int64_t index, int32_t thread)
{
    const attn_grad_job *job = arg;
    const int64_t heads = job->grads->d_bias.shape[1], blocks = blocks_of(job->plan, job->grads);
    run_block(job, attn_grad_scratch(job, index, thread),
              (place){index / blocks / heads, index / blocks % heads, index % blocks}, NULL);
}

/* ---- elements that share memory -------------------------------------------------------------- */

/* index: (owner, chunk). The chunk's rows of all the owner's (batch, head), block by block. */
static void fold_task(const void *arg, int64_t index, int32_t thread)
{
    const attn_grad_job *job = arg;
    const attn_fold *fold = &job->plan->fold;
    const int64_t chunk = index % fold->chunks, owner = index / fold->chunks,
                  blocks = blocks_of(job->plan, job->grads);
    char *const scratch = attn_grad_scratch(job, index, thread);
    const attn_fold_part part = attn_fold_owner(fold, &job->grads->d_bias, owner);
    double *const sums = attn_fold_sums(fold, job->workspace, owner, chunk);
    memset(sums, 0, (size_t)fold->span * sizeof *sums);
    for (int64_t b = part.b; b < part.b_end; b++) {
        for (int64_t h = part.h; h < part.h_end; h++) {
            for (int64_t i = blocks * chunk / fold->chunks; i < blocks * (chunk + 1) / fold->chunks;
                 i++) {
                run_block(job, scratch, (place){b, h, i}, sums);
            }
        }
    }
}

static void fold_store_task(const void *arg, int64_t owner, int32_t thread)
{
    const attn_grad_job *job = arg;
    (void)thread;
    attn_fold_store(&job->plan->fold, &job->grads->d_bias, job->workspace, owner);
}

void attn_grad_shared_bias(const attn_grad_plan *plan, const attn_gradients *grads,
                           const attn_executor *executor, char *workspace)
{
    const attn_grad_job job = {.plan = plan,
                               .grads = grads,
                               .workspace = workspace,
                               .tasks = attn_grad_shared_tasks(plan, grads)};
    const bool fold = plan->fold.chunks > 0;
    if (job.tasks > 0) {
        attn_tasks_run(executor, job.tasks, fold ? fold_task : sum_task, &job, plan->table);
    }
    if (fold) {
        attn_tasks_run(executor, attn_fold_owners(&plan->fold), fold_store_task, &job, NULL);
    }
}
