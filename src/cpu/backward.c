/*
 * backward.c: the backward pass on the CPU (FlashAttention-2, algorithm 2), with one owner for every output.
 *
 *     rows:   lse, delta = dO . O - dLSE                     of all rows, a loop of its own
 *     for a few blocks of keys (panels and sums stay in the cache):
 *         pack K, V
 *         for each block of ATTN_ROW_BLOCK query rows that sees them:
 *             pack Q, dO
 *             for each block of keys:
 *                 for each strip:  S = K QT, dP = V dOT;  P and dS;  dQT += K^T dS       (cpu/grad_tile.c)
 *                 dV += P dO, dK += dS Q
 *         store dK, dV
 *     store dQ
 *
 * An item is one KV head with its group, and owns all its gradients; or, if that leaves threads idle, the same loop
 * runs twice, once over items that own dK and dV of some keys, once over items that own dQ of some rows. dQ of a row
 * is summed over blocks of keys upwards, dK and dV of a key over blocks of rows upwards, in either case: the bits are
 * the same.
 *
 * A masked position has P = dS = 0, and 0 x NaN is NaN: if a result is not finite, the item is done again with products
 * of masked positions left out. Not here: gradients of bias, slopes and sinks (cpu/grad_scores.c).
 */
#include "cpu/backward.h"
#include "core/half.h"
#include "cpu/grad_tile.h"
#include "cpu/host.h"
#include <math.h>
#include <string.h>

typedef struct job {
    const attn_backward_plan *plan;
    const attn_gradients *g;
    const attn_grad_pass *pass;
    attn_schedule schedule; /* of the pass */
    char *workspace;
} job;

/* ---- rows: lse in units of S, and delta ------------------------------------------------------------------------ */

enum { TASK_STRIPS = 16 };

/* Flat row at = (b Nq + i) Hq + h. */
static char *flat_row(const attn_problem *p, const attn_tensor *t, int64_t at)
{
    return attn_at(t, at / p->heads / p->q.shape[1], at / p->heads % p->q.shape[1], at % p->heads, 0);
}

static void finish_rows(const job *j, int64_t first, int64_t n, char *dots)
{
    const attn_problem *p = &j->g->p;
    const attn_ukernel *uk = j->plan->uk;
    const double unit = j->plan->scores.step ? 1 : j->plan->scores.scale;
    for (int64_t i = 0; i < n; i++) {
        double lse = attn_element_to_f64(flat_row(p, &p->lse, first + i), p->lse.dtype), d_lse = 0;
        if (j->g->d_lse.data) {
            d_lse = attn_element_to_f64(flat_row(p, &j->g->d_lse, first + i), j->g->d_lse.dtype);
        }
        /* no visible key: whatever S, P = 2^(S - inf) = 0 */
        set_real(uk, j->workspace + j->plan->lse, first + i, lse == -INFINITY ? INFINITY : lse / unit);
        set_real(uk, j->workspace + j->plan->delta, first + i, get_real(uk, dots, i) - d_lse);
    }
}

static void rows_task(void *arg, int64_t index, int32_t thread)
{
    const job *j = arg;
    const attn_problem *p = &j->g->p;
    const attn_ukernel *uk = j->plan->uk;
    char *scratch = j->workspace + j->plan->scratch + (uint64_t)thread * j->plan->map.total;
    char *o = scratch + j->plan->map.dot, *d_o = scratch + j->plan->map.d_o, *dots = scratch + j->plan->map.lse;
    attn_host host;
    attn_host_leave(&host);
    for (int64_t strip = index * TASK_STRIPS; strip < (index + 1) * TASK_STRIPS; strip++) {
        const void *o_row[ATTN_MAX_STRIP] = {NULL}, *d_o_row[ATTN_MAX_STRIP] = {NULL};
        int64_t first = strip * uk->strip, n = min64(j->plan->rows - first, uk->strip);
        for (int64_t i = 0; i < n; i++) {
            o_row[i] = flat_row(p, &p->o, first + i);
            d_o_row[i] = flat_row(p, &j->g->d_o, first + i);
        }
        if (n > 0) {
            uk->pack_q(o, o_row, p->o.stride[3], p->o.dtype, p->dv, 1);
            uk->pack_q(d_o, d_o_row, j->g->d_o.stride[3], j->g->d_o.dtype, p->dv, 1);
            uk->grad->dots(dots, o, d_o, p->dv);
            finish_rows(j, first, n, dots);
        }
    }
    attn_host_return(&host);
}

/* ---- products -------------------------------------------------------------------------------------------------- */

static void add_dq(const attn_grad_run *r, int strip, int64_t item_row, attn_interval all, int64_t panel,
                   attn_interval keys)
{
    const int64_t line = r->uk->strip * r->uk->real_size, row = keys.lo - all.lo, n = keys.hi - keys.lo;
    char *dqt = r->dqt + (r->first_row - item_row + (int64_t)strip * r->uk->strip) * r->plan->d_pad * r->uk->real_size;
    const char *ds = (const char *)attn_grad_tile_at(r, r->dp, strip) + row * line;
    if (r->careful) {
        const unsigned char *visible = r->visible + ((int64_t)strip * ATTN_KEY_BLOCK + row) * r->uk->strip;
        r->uk->pv_careful(dqt, r->k, keys.lo - panel, ds, r->plan->d_pad, n, r->ones, visible);
    } else {
        r->uk->pv(dqt, r->k, keys.lo - panel, ds, r->plan->d_pad, n, r->ones);
    }
}

/* Strips first .. last-1 have tiles for this block of keys. */
static void add_dkv(const attn_grad_run *r, int first, int last, attn_interval all, int64_t panel)
{
    const int64_t real = r->uk->real_size, row = (int64_t)first * r->uk->strip;
    const int64_t d = r->plan->d_pad, dv = r->plan->dv_pad, n = all.hi - all.lo;
    char *dk = r->dk + (all.lo - panel) * d * real, *sum_v = r->dv + (all.lo - panel) * dv * real;
    const void *p = attn_grad_tile_at(r, r->s, first), *ds = attn_grad_tile_at(r, r->dp, first);
    const void *q = r->q + row * d * real, *d_o = r->d_o + row * dv * real;
    if (r->careful) {
        const unsigned char *visible = r->visible + row * ATTN_KEY_BLOCK;
        r->grad->rows_careful(sum_v, p, d_o, dv, n, last - first, visible);
        r->grad->rows_careful(dk, ds, q, d, n, last - first, visible);
    } else {
        r->grad->rows(sum_v, p, d_o, dv, n, last - first);
        r->grad->rows(dk, ds, q, d, n, last - first);
    }
}

/* The row block at hand against one block of keys. item_row: the first row of dqt. */
static void run_block(attn_grad_run *r, const attn_grad_pass *pass, int64_t item_row, attn_interval all, int64_t panel)
{
    int first = r->strips, last = 0;
    for (int i = 0; i < r->strips; i++) {
        attn_interval keys;
        attn_grad_tile_run(r, i, all, panel, &keys);
        if (pass->dkv) {
            attn_grad_tile_clear(r, i, all, keys);
        }
        if (keys.lo < keys.hi) {
            first = i < first ? i : first;
            last = i + 1;
            if (pass->dq) {
                add_dq(r, i, item_row, all, panel, keys);
            }
        }
    }
    if (pass->dkv && first < last) {
        add_dkv(r, first, last, all, panel);
    }
}

/* ---- an item --------------------------------------------------------------------------------------------------- */

/* dK and dV of keys first .. last-1, of which those not in use got nothing. */
static bool store_keys(const attn_grad_run *r, int64_t first, int64_t last)
{
    const attn_tensor *t[2] = {&r->g->dk, &r->g->dv};
    const void *sums[2] = {r->dk, r->dv};
    const int64_t pad[2] = {r->plan->d_pad, r->plan->dv_pad};
    bool finite = true;
    for (int i = 0; i < 2; i++) {
        if (t[i]->data) {
            char *to = attn_at(t[i], r->seq.tensor, r->seq.k_first + first, r->kv_head, 0);
            finite &= r->grad->put(to, t[i]->stride[1], t[i]->stride[3], t[i]->dtype, sums[i], pad[i], t[i]->shape[3],
                                   last - first);
        }
    }
    return finite;
}

static bool store_rows(attn_grad_run *r, int64_t first, int64_t last)
{
    const attn_tensor *dq = &r->g->dq;
    bool finite = true;
    for (int64_t row = first; row < last; row += r->uk->strip) {
        void *rows[ATTN_MAX_STRIP];
        const char *dqt = r->dqt + (row - first) * r->plan->d_pad * r->uk->real_size;
        int lanes = (int)min64(last - row, r->uk->strip);
        for (int lane = 0; lane < lanes; lane++) {
            lane_row at = attn_score_row(&r->scores, row + lane);
            rows[lane] = attn_at(dq, r->seq.tensor, r->seq.q_first + at.query, at.head, 0);
        }
        r->uk->store(rows, dq->stride[3], dq->dtype, dqt, r->p->d, r->ones, lanes);
        finite = finite && r->uk->finite(dqt, r->p->d, lanes);
    }
    return finite;
}

/* Keys first .. last-1, whose panels fit the scratch, against all rows of the item. */
static void run_keys(attn_grad_run *r, const attn_grad_pass *pass, attn_interval rows, int64_t first, int64_t last)
{
    const int64_t used = min64(last, r->seq.nk);
    bool packed = false;
    for (int64_t row = rows.lo; row < rows.hi && first < used; row += ATTN_ROW_BLOCK) {
        const int64_t end = min64(row + ATTN_ROW_BLOCK, rows.hi);
        const attn_rows_mask mask = attn_mask_range(r->p, &r->seq, row / r->p->group, (end - 1) / r->p->group + 1);
        attn_interval keys;
        if (attn_mask_tile(&mask, first, used, &keys) == ATTN_TILE_SKIP) {
            continue;
        }
        if (!packed) {
            attn_grad_pack_keys(r, first, used);
            packed = true;
        }
        attn_grad_pack_rows(r, row, end, pass->dkv);
        for (int64_t key = first; key < used; key += ATTN_KEY_BLOCK) {
            run_block(r, pass, rows.lo, (attn_interval){key, min64(key + ATTN_KEY_BLOCK, used)}, first);
        }
    }
}

/* All of it; false if a result is not finite. */
static bool run_item(attn_grad_run *r, const attn_grad_pass *pass, attn_interval rows, attn_interval keys)
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
        run_keys(r, pass, rows, first, last);
        finite = (!pass->dkv || store_keys(r, first, last)) && finite;
    }
    return (!pass->dq || store_rows(r, rows.lo, rows.hi)) && finite;
}

static void pass_task(void *arg, int64_t index, int32_t thread)
{
    const job *j = arg;
    const attn_grad_pass *pass = j->pass;
    attn_item item = attn_schedule_item(&j->schedule, &j->g->p, index);
    attn_grad_run r;
    attn_grad_run_init(&r, j->plan, j->g, j->workspace, thread);
    r.seq = attn_problem_sequence(r.p, item.sequence);
    r.kv_head = item.kv_head;
    r.scores.first_head = item.kv_head * r.p->group, r.scores.fold = r.p->group;
    attn_interval rows = {0, r.seq.nq * r.p->group}, keys = {0, r.seq.k_rows};
    if (pass->dq != pass->dkv) {
        attn_interval *mine = pass->dq ? &rows : &keys;
        *mine = (attn_interval){item.first_row, min64(item.last_row, mine->hi)};
    }
    attn_host host;
    attn_host_leave(&host);
    if (!run_item(&r, pass, rows, keys) && r.masked) {
        r.careful = true;
        (void)run_item(&r, pass, rows, keys);
    }
    attn_host_return(&host);
}

/* ---- the parallel loops ---------------------------------------------------------------------------------------- */

static const int64_t *fill_table(const attn_grad_pass *pass, const attn_problem *p, int64_t *first_item)
{
    int64_t items = 0;
    for (int64_t b = 0; b < pass->schedule.sequences; b++) {
        attn_sequence s = attn_problem_sequence(p, b);
        first_item[b] = items;
        items += attn_grad_blocks(pass, p, &s) * p->kv_heads;
    }
    first_item[pass->schedule.sequences] = items;
    return first_item;
}

void attn_cpu_backward(const attn_backward_plan *plan, const attn_gradients *g, const attn_executor *executor,
                       void *workspace)
{
    job j = {.plan = plan, .g = g, .workspace = workspace};
    const int64_t task_rows = (int64_t)TASK_STRIPS * plan->uk->strip;
    executor->parallel_for(executor->user, (plan->rows + task_rows - 1) / task_rows, rows_task, &j);
    for (int i = 0; i < plan->passes; i++) {
        j.pass = &plan->pass[i];
        j.schedule = j.pass->schedule;
        if (g->p.varlen) {
            j.schedule.first_item = fill_table(j.pass, &g->p, (int64_t *)(void *)(j.workspace + j.pass->table));
        }
        executor->parallel_for(executor->user, j.schedule.items, pass_task, &j);
    }
    attn_grad_scores(plan, g, executor, workspace);
}
