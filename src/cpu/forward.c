/*
 * forward.c: the tile loop of the forward pass on the CPU (FlashAttention-2, algorithm 1).
 *
 * A work item is a block of query rows of one KV head. Its rows are cut into strips as wide as the kernels' tiles; the
 * loop over key blocks is outside, the loop over strips inside, so each block of K and V is widened once per item and
 * then used from the cache by all strips, whose running state (m, l, OT) waits in the scratch meanwhile:
 *
 *     pack Q of every strip
 *     for each block of keys:            (mask.h: only blocks that some row sees)
 *         pack K, V
 *         for each strip:                (mask.h: SKIP | FULL | PARTIAL)
 *             for each tile of keys: S = K QT;  score step if there is one;  mask if PARTIAL;  softmax
 *             OT = OT alpha + V^T P
 *     for each strip: O = OT / l, LSE
 *
 * A masked position contributes 0 x V, which is NaN if V is not finite there. A strip that had masked tiles and ends
 * with a non-finite value is therefore done again, carefully: products with masked keys are left out.
 * Not here: instruction sets (ukernel.h), what a mask is (core/mask.h), who runs which item (executor).
 */
#include "cpu/forward.h"
#include "core/half.h"
#include "core/mask.h"
#include "core/softmax.h"
#include "cpu/host.h"
#include "cpu/prefetch.h"
#include "cpu/scores.h"
#include <math.h>
#include <string.h>

/* One item on one thread. */
typedef struct item_run {
    const attn_cpu_plan *plan;
    const attn_problem *p;
    const attn_ukernel *uk;
    attn_sequence seq;
    int64_t kv_head, first_row, last_row;
    int strips;
    attn_score_run scores;
    char *s, *prob, *strip;
    char *k_space, *v_space; /* for panels */
    const void *k, *v;       /* panels of the block at hand */
    unsigned char *visible;
    attn_rows_mask *mask;     /* of each strip */
    attn_rows k_rows, v_rows; /* of the block at hand and on */
    attn_interval next;       /* those of the next block that are not prefetched yet */
    int64_t next_rows;        /* as many of them with each tile */
} item_run;

/* ---- strips ---------------------------------------------------------------------------------------------------- */

static char *strip_qt(const item_run *r, int strip)
{
    return r->strip + (uint64_t)strip * r->plan->scratch.strip_bytes;
}

static char *strip_ot(const item_run *r, int strip)
{
    return strip_qt(r, strip) + r->plan->scratch.strip_ot;
}

static attn_running strip_state(const item_run *r, int strip)
{
    int64_t lanes = r->uk->strip * r->uk->real_size;
    char *m = strip_qt(r, strip) + r->plan->scratch.strip_state;
    char *top = r->p->row_max.data ? m + 3 * lanes : NULL;
    return (attn_running){.m = m, .l = m + lanes, .alpha = m + 2 * lanes, .top = r->uk->lags ? top : m};
}

static int strip_lanes(const item_run *r, int strip)
{
    int64_t left = r->last_row - r->first_row - (int64_t)strip * r->uk->strip;
    return (int)min64(left, r->uk->strip);
}

static int64_t strip_first(const item_run *r, int strip)
{
    return r->first_row + (int64_t)strip * r->uk->strip;
}

static bool sees_nothing(const item_run *r, int strip)
{
    return r->mask[strip].hull.lo >= r->mask[strip].hull.hi;
}

static void reset_strip(const item_run *r, int strip)
{
    attn_running state = strip_state(r, strip);
    for (int lane = 0; lane < r->uk->strip; lane++) {
        set_real(r->uk, state.m, lane, -INFINITY);
        if (state.top) {
            set_real(r->uk, state.top, lane, -INFINITY);
        }
        set_real(r->uk, state.l, lane, 0);
    }
    if (sees_nothing(r, strip)) { /* otherwise the first block's products are the first thing that OT holds */
        memset(strip_ot(r, strip), 0, (size_t)(r->plan->dv_pad * r->uk->strip * r->uk->real_size));
    }
}

static void start_strip(item_run *r, int strip)
{
    const void *rows[ATTN_MAX_STRIP];
    int lanes = strip_lanes(r, strip);
    lane_row row = attn_score_row(&r->scores, strip_first(r, strip));
    for (int lane = 0; lane < lanes; lane++, row = attn_score_next(&r->scores, row)) {
        rows[lane] = attn_at(&r->p->q, r->seq.tensor, r->seq.q_first + row.query, row.head, 0);
    }
    for (int lane = lanes; lane < r->uk->strip; lane++) {
        rows[lane] = NULL;
    }
    r->mask[strip] = attn_score_rows_mask(&r->scores, strip_first(r, strip), lanes);
    reset_strip(r, strip);
    if (!sees_nothing(r, strip)) {
        r->uk->pack_q(strip_qt(r, strip), rows, r->p->q.stride[3], r->p->q.dtype, r->p->d, r->plan->scores.factor,
                      lanes);
    }
}

/* ---- one tile: keys keys.lo .. keys.hi-1 of a strip ------------------------------------------------------------ */

/* The rows that are due with some tiles: prefetched before a softmax, which leaves the cache alone. */
static void prefetch_rows(item_run *r, int64_t tiles)
{
    for (const int64_t last = min64(r->next.lo + tiles * r->next_rows, r->next.hi); r->next.lo < last; r->next.lo++) {
        attn_prefetch_row(&r->k_rows, r->next.lo, r->p->d);
        attn_prefetch_row(&r->v_rows, r->next.lo, r->p->dv);
    }
}

/* What a strip's tiles have in common. */
typedef struct strip_run {
    int lanes;
    int64_t first; /* row */
    const attn_rows_mask *mask;
    const void *qt;
    attn_running state;
} strip_run;

/* What comes after a tile of a strip's keys: the next one, or the products with V. */
static attn_ahead ahead_of(const item_run *r, attn_interval tile, attn_interval keys, int64_t block)
{
    const int64_t left = keys.hi - tile.hi, n = min64(left, r->uk->key_tile);
    return left > 0 ? (attn_ahead){.k = r->k, .at = tile.hi - block, .n = n, .cols = r->p->d}
                    : (attn_ahead){.v = r->v, .at = keys.lo - block, .n = keys.hi - keys.lo, .cols = r->plan->dv_pad};
}

/* Probabilities of a tile of a strip's keys `part` of a block. True if positions are masked. Between the products and
 * the softmax as little as possible is done: the processor overlaps their ends. */
static bool run_tile(item_run *r, strip_run *t, attn_interval keys, attn_interval part, int64_t block, bool careful)
{
    const attn_ukernel *uk = r->uk;
    const int64_t n = keys.hi - keys.lo, done = keys.lo - part.lo;
    const bool partial = keys.lo < t->mask->common.lo || keys.hi > t->mask->common.hi;
    t->state.ahead = ahead_of(r, keys, part, block);
    uk->qk(r->s, r->k, keys.lo - block, t->qt, r->p->d, n, t->lanes);
    if (partial || r->plan->scores.step) {
        attn_score_tile_run(&r->scores, r->s, t->first, t->lanes, keys, partial ? ATTN_TILE_PARTIAL : ATTN_TILE_FULL);
    }
    if (careful) {
        attn_score_note_visible(uk, r->s, n, r->visible + done * uk->strip);
    }
    prefetch_rows(r, 1);
    uk->softmax(r->prob, done, r->s, n, r->plan->scores.exponent, &t->state, t->lanes);
    if (r->p->dropout.on) {
        attn_score_drop(&r->scores, r->prob, done, t->first, keys.lo, n, true);
    }
    return partial;
}

/* The keys of a block for a strip, tile by tile, then their part of OT. True if positions are masked. */
static bool run_block(item_run *r, int strip, attn_interval keys, int64_t block, bool careful)
{
    const attn_ukernel *uk = r->uk;
    const int64_t n = keys.hi - keys.lo, at = keys.lo - block;
    strip_run t = {strip_lanes(r, strip), strip_first(r, strip), &r->mask[strip], strip_qt(r, strip),
                   strip_state(r, strip)};
    const void *alpha = keys.lo <= t.mask->hull.lo ? NULL : t.state.alpha; /* the first block */
    bool masked = n % uk->key_step != 0;
    attn_interval tile = keys;
    for (; tile.lo < keys.hi; tile.lo = tile.hi) {
        tile.hi = min64(tile.lo + uk->key_tile - tile.lo % uk->key_tile, keys.hi);
        masked |= run_tile(r, &t, tile, keys, block, careful);
    }
    if (careful) {
        uk->pv_careful(strip_ot(r, strip), r->v, at, r->prob, r->plan->dv_pad, n, alpha, r->visible, t.lanes);
    } else {
        uk->pv(strip_ot(r, strip), r->v, at, r->prob, r->plan->dv_pad, n, alpha, t.lanes);
    }
    return masked;
}

/* ---- all key blocks for strips first .. last-1 ----------------------------------------------------------------- */

static attn_rows key_rows(const item_run *r, const attn_tensor *t, int64_t key)
{
    const char *first = attn_at(t, r->seq.tensor, r->seq.k_first + key, r->kv_head, 0);
    return (attn_rows){first, t->stride[1], t->stride[3], t->dtype};
}

/* Rows that are a panel as they are need no packing. */
static bool is_panel(const item_run *r, const attn_tensor *t, int64_t cols)
{
    return r->uk->rows_are_panels && t->dtype == (r->uk->real_size == 4 ? ATTN_F32 : ATTN_F64) && t->stride[3] == 1 &&
           t->stride[1] == cols && t->shape[3] == cols;
}

static void pack_block(item_run *r, attn_interval keys, int64_t block)
{
    int64_t at = keys.lo - block, n = keys.hi - keys.lo;
    r->k = r->k_space, r->v = r->v_space;
    if (is_panel(r, &r->p->k, r->p->d)) {
        r->k = key_rows(r, &r->p->k, block).data;
    } else {
        r->uk->pack_k(r->k_space, at, &r->k_rows, n, r->p->d);
    }
    if (is_panel(r, &r->p->v, r->plan->dv_pad)) {
        r->v = key_rows(r, &r->p->v, block).data;
    } else {
        r->uk->pack_v(r->v_space, at, &r->v_rows, n, r->p->dv, r->plan->dv_pad);
    }
}

/* Notes in masked[] which strips had a tile with masked positions. */
static void run_blocks(item_run *r, int first, int last, bool careful, bool *masked)
{
    attn_interval hull = {INT64_MAX, 0};
    for (int i = first; i < last; i++) {
        hull.lo = min64(hull.lo, r->mask[i].hull.lo);
        hull.hi = max64(hull.hi, r->mask[i].hull.hi);
    }
    if (hull.lo >= hull.hi) {
        return;
    }
    const int64_t size = r->uk->key_block, step = r->uk->key_step;
    attn_host_flush(r->uk->flushes);
    for (int64_t block = hull.lo / size * size; block < hull.hi; block += size) {
        attn_interval all = {max64(block, hull.lo / step * step), min64(block + size, hull.hi)}, keys;
        const int64_t tiles = size / r->uk->key_tile, all_tiles = (last - first) * tiles;
        r->k_rows = key_rows(r, &r->p->k, all.lo), r->v_rows = key_rows(r, &r->p->v, all.lo);
        r->next = (attn_interval){all.hi - all.lo, min64(all.hi + size, hull.hi) - all.lo};
        r->next_rows = (size + all_tiles - 1) / all_tiles;
        pack_block(r, all, block);
        for (int i = first; i < last; i++) {
            if (attn_mask_tile(&r->mask[i], all.lo, all.hi, &keys) == ATTN_TILE_SKIP) {
                prefetch_rows(r, tiles);
                continue;
            }
            keys.lo -= keys.lo % step;
            masked[i] |= run_block(r, i, keys, block, careful);
        }
    }
    attn_host_flush(false);
}

/* ---- results --------------------------------------------------------------------------------------------------- */

/* Writes LSE and row maximum. Scores are relative to m. */
static attn_row_end finish_row(const item_run *r, lane_row row, double m, double l, double row_max)
{
    const attn_problem *p = r->p;
    double scale = r->plan->scores.step ? 1 : r->plan->scores.scale, max = m * scale, sink = -INFINITY;
    if (p->sinks.data && !r->seq.outside) {
        sink = attn_element_to_f64(attn_at_broadcast(&p->sinks, r->seq.index, row.head, 0, 0), p->sinks.dtype);
    }
    int64_t i = r->seq.q_first + row.query;
    if (p->lse.data) {
        attn_element_from_f64(attn_at(&p->lse, r->seq.tensor, i, row.head, 0), p->lse.dtype,
                              attn_row_lse(max, l, sink));
    }
    if (p->row_max.data) {
        attn_element_from_f64(attn_at(&p->row_max, r->seq.tensor, i, row.head, 0), p->row_max.dtype, row_max * scale);
    }
    return attn_row_divisor(max, l, sink);
}

/* O of a lane whose sink is far above its scores. */
static void divide_far(const item_run *r, char *ot, int lane, attn_row_end end)
{
    for (int64_t at = lane; at < r->p->dv * r->uk->strip; at += r->uk->strip) {
        set_real(r->uk, ot, at, get_real(r->uk, ot, at) / end.far / end.divisor);
    }
}

static void store_strip(const item_run *r, int strip, const attn_tensor *o, const void *divisor)
{
    void *rows[ATTN_MAX_STRIP];
    int lanes = strip_lanes(r, strip);
    lane_row row = attn_score_row(&r->scores, strip_first(r, strip));
    for (int lane = 0; lane < lanes; lane++, row = attn_score_next(&r->scores, row)) {
        rows[lane] = attn_at(o, r->seq.tensor, r->seq.q_first + row.query, row.head, 0);
    }
    r->uk->store(rows, o->stride[3], o->dtype, strip_ot(r, strip), r->p->dv, divisor, lanes);
}

/* LSE, row maximum and what O is divided by, in place of alpha. */
static void finish_rows(const item_run *r, int strip, const attn_running *state)
{
    int lanes = strip_lanes(r, strip);
    lane_row row = attn_score_row(&r->scores, strip_first(r, strip));
    for (int lane = 0; lane < lanes; lane++, row = attn_score_next(&r->scores, row)) {
        double m = get_real(r->uk, state->m, lane), l = get_real(r->uk, state->l, lane);
        attn_row_end end = finish_row(r, row, m, l, state->top ? get_real(r->uk, state->top, lane) : m);
        if (end.far > 0) {
            divide_far(r, strip_ot(r, strip), lane, end);
        }
        set_real(r->uk, state->alpha, lane, end.far > 0 ? 1 : end.divisor);
    }
}

static void finish_strip(const item_run *r, int strip)
{
    const attn_running state = strip_state(r, strip);
    const void *divisor = state.l;
    if (r->p->sinks.data || r->p->lse.data || r->p->row_max.data) {
        finish_rows(r, strip, &state);
        divisor = state.alpha;
    }
    store_strip(r, strip, &r->p->o, divisor);
    if (r->p->o_f32.data) {
        store_strip(r, strip, &r->p->o_f32, divisor);
    }
}

static void run_item(item_run *r)
{
    bool masked[ATTN_MAX_STRIPS] = {false}, tensors = r->p->bias.data || r->p->mask.data;
    for (int i = 0; i < r->strips; i++) {
        start_strip(r, i);
    }
    run_blocks(r, 0, r->strips, false, masked);
    for (int i = 0; i < r->strips; i++) {
        if ((masked[i] || tensors) && !r->uk->finite(strip_ot(r, i), r->p->dv, strip_lanes(r, i))) {
            reset_strip(r, i);
            run_blocks(r, i, i + 1, true, masked);
        }
        finish_strip(r, i);
    }
}

/* ---- the parallel loop ----------------------------------------------------------------------------------------- */

typedef struct job {
    const attn_cpu_plan *plan;
    const attn_problem *p;
    attn_schedule schedule;
    char *scratch;
} job;

static void task(void *arg, int64_t index, int32_t thread)
{
    const job *j = arg;
    const attn_scratch_map *map = &j->plan->scratch;
    const attn_ukernel *uk = j->plan->uk;
    char *base = j->scratch + (uint64_t)thread * map->total;
    attn_rows_mask mask[ATTN_MAX_STRIPS];
    attn_item item = attn_schedule_item(&j->schedule, j->p, index);
    item_run r = {
        .plan = j->plan,
        .p = j->p,
        .uk = uk,
        .kv_head = item.kv_head,
        .first_row = item.first_row,
        .seq = attn_problem_sequence(j->p, item.sequence),
        .k_space = base + map->k,
        .v_space = base + map->v,
        .s = base + map->s,
        .prob = base + map->p,
        .visible = (unsigned char *)base + map->visible,
        .strip = base + map->strips,
        .mask = mask,
    };
    r.scores = (attn_score_run){.p = j->p, .uk = uk, .plan = &j->plan->scores, .seq = &r.seq, .fold = j->p->group};
    r.scores.first_head = item.kv_head * j->p->group;
    r.scores.bias = base + map->bias;
    attn_score_lanes(&r.scores, base + map->lanes);
    r.last_row = min64(item.last_row, r.seq.nq * j->p->group);
    r.strips = (int)((r.last_row - r.first_row + uk->strip - 1) / uk->strip);
    attn_host host;
    attn_host_leave(&host);
    uk->begin();
    run_item(&r);
    uk->end();
    attn_host_return(&host);
}

void attn_cpu_forward(const attn_cpu_plan *plan, const attn_problem *p, const attn_executor *executor, void *workspace)
{
    job j = {plan, p, plan->schedule, (char *)workspace + plan->table_bytes};
    if (plan->table_bytes) {
        int64_t *first_item = workspace, items = 0;
        for (int64_t b = 0; b < plan->schedule.sequences; b++) {
            attn_sequence s = attn_problem_sequence(p, b);
            first_item[b] = items;
            items += attn_schedule_blocks(p, &s, plan->schedule.block_rows) * p->kv_heads;
        }
        first_item[plan->schedule.sequences] = items;
        j.schedule.first_item = first_item;
    }
    executor->parallel_for(executor->user, plan->schedule.items, task, &j);
}
