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
#include "cpu/backward/tile.h"
#include <math.h>
#include <string.h>

/* An item: its element (b, h) of the shape, its queries, and the run that computes tiles. */
typedef struct item {
    int64_t b, h;
    attn_interval queries;
    bool per_key;   /* else one element for all keys */
    double *folded; /* sums of elements that share memory; NULL: none do */
    attn_grad_run run;
} item;

/* ---- sums ------------------------------------------------------------------------------------ */

/* Adds a row of the tile to the sums of its key, sums[query]. One lane after the other, so that the
 * width of strips does not matter. */
static void add_row(const item *x, const double *value, const int64_t *query, int lanes,
                    double *sums)
{
    double *const mine = sums + query[0] - x->queries.lo;
    if (x->run.scores.fold == 1) { /* each lane its own query */
        for (int lane = 0; lane < lanes; lane++) {
            mine[lane] += value[lane];
        }
        return;
    }
    for (int lane = 0; lane < lanes; lane++) {
        mine[query[lane] - query[0]] += value[lane];
    }
}

static void add_tile(item *x, int strip, int64_t block, attn_interval keys)
{
    attn_grad_run *r = &x->run;
    const int lanes = attn_grad_lanes(r, strip);
    const int64_t line = r->uk->strip * r->uk->real_size;
    const char *ds = attn_grad_tile_at(r, r->dp, strip, keys.lo - block);
    int64_t query[ATTN_MAX_STRIP];
    attn_grad_tile_run(r, strip, block, keys, NULL);
    for (int lane = 0; lane < lanes; lane++) {
        query[lane] =
            attn_score_row(&r->scores, r->first_row + (int64_t)strip * r->uk->strip + lane).query;
    }
    for (int64_t key = keys.lo; key < keys.hi; key++, ds += line) {
        double value[ATTN_MAX_STRIP];
        get_reals(r->uk, value, ds, lanes);
        add_row(x, value, query, lanes, r->sums + (key - block) * r->grad->row_block);
    }
}

static void add_strip(item *x, int strip, attn_interval all)
{
    const attn_interval part = attn_grad_part(&x->run, strip, all);
    for (attn_interval tile = {part.lo, part.lo}; tile.hi < part.hi;) {
        tile = attn_grad_first_tile(&x->run, (attn_interval){tile.hi, part.hi});
        add_tile(x, strip, all.lo, tile);
    }
}

/* Runs the item's queries of one sequence and of heads first_head .. first_head + fold - 1 against
 * one block of keys. */
static void add_block(item *x, int64_t b, int64_t first_head, int64_t fold, int64_t key)
{
    attn_grad_run *r = &x->run;
    r->seq = attn_problem_sequence(r->p, b);
    r->scores.first_head = first_head, r->scores.fold = fold;
    r->kv_head = first_head / r->p->group;
    const attn_interval all = {key, min64(key + r->uk->key_block, r->seq.nk)};
    const attn_interval rows = {x->queries.lo * fold, min64(x->queries.hi, r->seq.nq_used) * fold};
    bool packed = false;
    for (int64_t row = rows.lo; row < rows.hi && all.lo < all.hi; row += r->grad->row_block) {
        const int64_t end = min64(row + r->grad->row_block, rows.hi);
        const attn_rows_mask mask =
            attn_mask_range(r->p, &r->seq, row / fold, (end - 1) / fold + 1);
        attn_interval keys;
        if (attn_mask_tile(&mask, all.lo, all.hi, &keys) == ATTN_TILE_SKIP) {
            continue;
        }
        if (!packed) {
            r->first_key = all.lo;
            attn_grad_pack_keys(r, all.lo, all.hi, false);
            packed = true;
        }
        attn_grad_pack_rows(r, row, end, false);
        for (int strip = 0; strip < r->strips; strip++) {
            add_strip(x, strip, all);
        }
    }
}

/* Runs all sequences and heads that share the item's elements. */
static void add_shared(item *x, int64_t key)
{
    const attn_problem *p = x->run.p;
    const bool all_b = x->run.g->d_bias.shape[0] == 1, all_h = x->run.g->d_bias.shape[1] == 1;
    for (int64_t b = all_b ? 0 : x->b; b < (all_b ? p->batch : x->b + 1); b++) {
        /* 0 without query heads */
        for (int64_t kv = 0; all_h && p->group > 0 && kv < p->kv_heads; kv++) {
            add_block(x, b, kv * p->group, p->group, key);
        }
        if (!all_h) {
            add_block(x, b, x->h, 1, key);
        }
    }
}

/* ---- results --------------------------------------------------------------------------------- */

/* The sums of keys first .. last-1 into those of their places. */
static void fold_sums(const item *x, int64_t first, int64_t last)
{
    const attn_fold *f = &x->run.plan->fold;
    const int64_t row = x->run.grad->row_block;
    for (int64_t i = x->queries.lo; i < x->queries.hi; i++) {
        const double *from = x->run.sums + i - x->queries.lo;
        double *to = x->folded + attn_fold_at(f, x->b, x->h, i, first);
        for (int64_t key = first; key < last; key++, from += row, to += f->step[3]) {
            *to += *from;
        }
    }
}

/* The same to their places. */
static void store_sums(const item *x, int64_t first, int64_t last)
{
    if (x->folded) {
        fold_sums(x, first, last);
        return;
    }
    const attn_tensor *out = &x->run.g->d_bias;
    const int64_t row = x->run.grad->row_block,
                  step = out->stride[3] * (int64_t)attn_dtype_size(out->dtype);
    for (int64_t i = x->queries.lo; i < x->queries.hi; i++) {
        char *to = attn_at(out, x->b, x->h, i, first);
        for (int64_t key = first; key < last; key++, to += step) {
            attn_element_from_f64(to, out->dtype,
                                  x->run.sums[(key - first) * row + i - x->queries.lo]);
        }
    }
}

static int64_t most_keys(const attn_problem *p)
{
    int64_t most = 0;
    for (int64_t b = 0; b < (p->varlen ? p->batch : p->batch > 0 ? 1 : 0); b++) {
        most = max64(most, attn_declared_length(&p->cu_k, &p->k, b));
    }
    return most;
}

/* Adds the sums of all keys of a block into the line after them, key by key. */
static void add_keys(const item *x)
{
    const int64_t row = x->run.grad->row_block, all = x->run.uk->key_block * row;
    for (int64_t i = 0; i < all; i++) {
        x->run.sums[all + i % row] += x->run.sums[i];
    }
}

static void run_item(item *x)
{
    const int64_t block = x->run.uk->key_block, row = x->run.grad->row_block;
    const size_t line = (size_t)row * sizeof(double), bytes = (size_t)block * line;
    const int64_t end = x->per_key ? x->run.g->d_bias.shape[3] : most_keys(x->run.p);
    memset(x->run.sums, 0, bytes + line);
    for (int64_t key = 0; key < end; key += block) {
        add_shared(x, key);
        if (x->per_key) {
            store_sums(x, key, min64(key + block, end));
        } else {
            add_keys(x);
        }
        memset(x->run.sums, 0, bytes);
    }
    if (!x->per_key) {
        memcpy(x->run.sums, x->run.sums + block * row, line);
        store_sums(x, 0, 1);
    }
}

/* Row blocks of one (batch, head) of the shape. */
static int64_t blocks_of(const attn_grad_job *j)
{
    const int64_t rows = j->plan->uk->grad->row_block;
    return (j->g->d_bias.shape[2] + rows - 1) / rows;
}

/* A row block of one (batch, head) of the shape. */
typedef struct place {
    int64_t b, h, block;
} place;

/* Its sums to their places, or into those of a fold. */
static void run_block(const attn_grad_job *j, int32_t thread, place at, double *folded)
{
    const attn_tensor *out = &j->g->d_bias;
    const int64_t rows = j->plan->uk->grad->row_block;
    item x = {.b = at.b, .h = at.h, .per_key = out->shape[3] != 1, .folded = folded};
    x.queries.lo = at.block * rows;
    x.queries.hi = min64(x.queries.lo + rows, out->shape[2]);
    attn_grad_run_init(&x.run, j->plan, j->g, j->workspace, thread);
    x.run.natural = true, x.run.factor = 1;
    run_item(&x);
}

/* index: (batch, head, block) of the shape. */
static void sum_task(const void *job, int64_t index, int32_t thread)
{
    const attn_grad_job *j = job;
    const int64_t heads = j->g->d_bias.shape[1], blocks = blocks_of(j);
    run_block(j, thread, (place){index / blocks / heads, index / blocks % heads, index % blocks},
              NULL);
}

/* ---- elements that share memory -------------------------------------------------------------- */

/* index: (owner, chunk). The chunk's rows of all the owner's (batch, head), block by block. */
static void fold_task(const void *job, int64_t index, int32_t thread)
{
    const attn_grad_job *j = job;
    const attn_fold *f = &j->plan->fold;
    const int64_t chunk = index % f->chunks, owner = index / f->chunks, blocks = blocks_of(j);
    const attn_fold_part part = attn_fold_owner(f, &j->g->d_bias, owner);
    double *const sums = attn_fold_sums(f, j->workspace, owner, chunk);
    memset(sums, 0, (size_t)f->span * sizeof *sums);
    for (int64_t b = part.b; b < part.b_end; b++) {
        for (int64_t h = part.h; h < part.h_end; h++) {
            for (int64_t i = blocks * chunk / f->chunks; i < blocks * (chunk + 1) / f->chunks;
                 i++) {
                run_block(j, thread, (place){b, h, i}, sums);
            }
        }
    }
}

static void fold_store_task(const void *job, int64_t owner, int32_t thread)
{
    const attn_grad_job *j = job;
    (void)thread;
    attn_fold_store(&j->plan->fold, &j->g->d_bias, j->workspace, owner);
}

void attn_grad_shared_bias(const attn_grad_plan *plan, const attn_gradients *g,
                           const attn_executor *executor, char *workspace)
{
    const attn_grad_job job = {.plan = plan, .g = g, .workspace = workspace};
    const attn_fold *f = &plan->fold;
    if (f->chunks > 0) {
        const int64_t owners = attn_fold_owners(f);
        attn_tasks_run(executor, owners * f->chunks, fold_task, &job, plan->uk);
        attn_tasks_run(executor, owners, fold_store_task, &job, NULL);
    } else if (plan->shared_bias) {
        const int64_t owners = g->d_bias.shape[0] * g->d_bias.shape[1];
        attn_tasks_run(executor, owners * blocks_of(&job), sum_task, &job, plan->uk);
    }
}
