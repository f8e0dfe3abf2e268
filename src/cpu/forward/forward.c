/*
 * forward.c: the tile loop of the forward pass on the CPU (FlashAttention-2, algorithm 1).
 *
 * A work item is a block of query rows of one KV head. Its rows are cut into strips as wide as the
 * kernels' tiles. The loop over key blocks is outside and the loop over strips inside, so each
 * block of K and V is widened once per item and then serves all strips from the cache; their
 * running state (m, l, OT) waits in the scratch meanwhile:
 *
 *     pack Q of every strip
 *     for each block of keys:            (mask.h: only blocks that some row sees)
 *         pack K, V
 *         for each strip:                (mask.h: SKIP | FULL | PARTIAL)
 *             for each tile of keys: S = K QT;  score step if there is one;  mask if PARTIAL;
 *             softmax
 *             OT = OT alpha + V^T P      (nodes.h: at the end of a segment, a node of its own)
 *     for each strip: O = OT / l, LSE
 *
 * A masked position contributes 0 x V, which is NaN if V is not finite there. So a strip that had
 * masked tiles and ends with a non-finite value is done again, carefully: without the products of
 * masked keys. Not here: instruction sets (table.h), rows in and out (strip.c), geometry of masks
 * (core/mask.h), the order of items (executor).
 */
#include "core/segment.h"
#include "cpu/forward/nodes.h"
#include "cpu/keys.h"
#include "cpu/machine/host.h"
#include "cpu/machine/tasks.h"

/* ---- one tile: keys keys.lo .. keys.hi-1 of a strip ------------------------------------------ */

/* Prefetches the rows that are due with some tiles, before a softmax, which leaves the cache
 * alone. */
static void prefetch_rows(attn_item_run *r, int64_t tiles)
{
    const int64_t last = min64(r->next.lo + tiles * r->next_rows, r->next.hi);
    if (r->next.lo < last) {
        attn_prefetch_keys(r->p, &r->p->k, &r->seq, r->kv_head, r->next.lo, last);
        attn_prefetch_keys(r->p, &r->p->v, &r->seq, r->kv_head, r->next.lo, last);
        r->next.lo = last;
    }
}

/* The keys of a block for one strip. */
typedef struct block_run {
    int lanes;
    int64_t first; /* row */
    const attn_rows_mask *mask;
    const void *qt;
    attn_running state;
    attn_interval keys;
    int64_t block; /* the panels' first key */
    bool careful;
} block_run;

/* The data read after the keys before `next`: more keys, or the products with V. */
static attn_ahead ahead_of(const attn_item_run *r, const block_run *b, int64_t next)
{
    const attn_interval keys = b->keys;
    return next < keys.hi ? (attn_ahead){.k = r->k,
                                         .at = next - b->block,
                                         .n = min64(keys.hi - next, r->uk->key_tile),
                                         .cols = r->p->d}
                          : (attn_ahead){.v = r->v,
                                         .at = keys.lo - b->block,
                                         .n = keys.hi - keys.lo,
                                         .cols = r->plan->dv_pad};
}

static attn_keys keys_of(const attn_item_run *r, const block_run *b, attn_interval keys)
{
    return (attn_keys){r->k, b->qt, r->p->d, keys.lo - b->block, keys.hi - keys.lo};
}

/* End of the longest run, from key lo on, of tiles that all rows see and whose scores are the
 * products. */
static int64_t plain_end(const attn_item_run *r, const block_run *b, int64_t lo)
{
    if (b->careful || r->plan->scores.step || r->p->dropout.on || lo < b->mask->common.lo) {
        return lo;
    }
    const int64_t end = min64(b->keys.hi, b->mask->common.hi);
    return end == b->keys.hi ? end : max64(end - end % r->uk->key_tile, lo);
}

/* Runs any other tile. True if positions are masked. */
static bool run_tile(attn_item_run *r, block_run *b, attn_interval keys)
{
    const attn_ukernel *uk = r->uk;
    const int64_t n = keys.hi - keys.lo, done = keys.lo - b->keys.lo;
    const bool partial = keys.lo < b->mask->common.lo || keys.hi > b->mask->common.hi;
    uk->qk(r->s, r->k, keys.lo - b->block, b->qt, r->p->d, n, b->lanes);
    if (partial || r->plan->scores.step) {
        attn_score_tile_run(&r->scores, r->s, b->first, b->lanes, keys,
                            partial ? ATTN_TILE_PARTIAL : ATTN_TILE_FULL);
    }
    if (b->careful) {
        attn_score_note_visible(uk, r->s, n, r->visible + done * uk->strip);
    }
    uk->softmax(r->prob, done, r->s, n, r->plan->scores.exponent, &b->state, b->lanes);
    if (r->p->dropout.on) {
        attn_score_drop(&r->scores, r->prob, done, b->first, keys.lo, n, true);
    }
    return partial;
}

/* Computes the probabilities of the keys. True if positions are masked. */
static bool run_tiles(attn_item_run *r, block_run *b)
{
    const int64_t tile = r->uk->key_tile;
    bool masked = false;
    for (attn_interval keys = b->keys; keys.lo < b->keys.hi; keys.lo = keys.hi) {
        keys.hi = plain_end(r, b, keys.lo);
        const bool plain = keys.hi > keys.lo;
        if (!plain) {
            keys.hi = min64(keys.lo + tile - keys.lo % tile, b->keys.hi);
        }
        b->state.ahead = ahead_of(r, b, keys.hi);
        prefetch_rows(r, (keys.hi - keys.lo + tile - 1) / tile);
        if (plain) {
            const attn_keys run = keys_of(r, b, keys);
            r->uk->qk_softmax(r->prob, keys.lo - b->keys.lo, r->s, &run, r->plan->scores.exponent,
                              &b->state, b->lanes);
        } else {
            masked |= run_tile(r, b, keys);
        }
    }
    return masked;
}

/* Runs the keys of a block for a strip, then their part of OT. True if positions are masked. */
static bool run_block(attn_item_run *r, int strip, attn_interval keys, int64_t block, bool careful)
{
    const attn_ukernel *uk = r->uk;
    const int64_t n = keys.hi - keys.lo, at = keys.lo - block;
    block_run b = {strip_lanes(r, strip),
                   strip_first(r, strip),
                   &r->mask[strip],
                   strip_qt(r, strip),
                   strip_state(r, strip),
                   keys,
                   block,
                   careful};
    const void *alpha = attn_strip_enter(r, strip, block / ATTN_SEGMENT) ? NULL : b.state.alpha;
    const bool masked = run_tiles(r, &b) || n % uk->key_step != 0;
    if (careful) {
        uk->pv_careful(strip_ot(r, strip), r->v, at, r->prob, r->plan->dv_pad, n, alpha, r->visible,
                       b.lanes);
    } else {
        uk->pv(strip_ot(r, strip), r->v, at, r->prob, r->plan->dv_pad, n, alpha, b.lanes);
    }
    return masked;
}

/* ---- all key blocks for strips first .. last-1 ----------------------------------------------- */

/* Rows that already are a panel need no packing. */
static bool is_panel(const attn_item_run *r, const attn_tensor *t, int64_t cols,
                     attn_interval block)
{
    return r->uk->rows_are_panels &&
           attn_kv_run_end(r->p, &r->seq, block.lo, block.hi) == block.hi &&
           t->dtype == (r->uk->real_size == 4 ? ATTN_F32 : ATTN_F64) && t->stride[3] == 1 &&
           t->stride[1] == cols && t->shape[3] == cols;
}

/* The panels of a block of keys, which begins at key `block`: of those that a strip sees. */
static void pack_block(attn_item_run *r, attn_interval keys, int64_t block)
{
    const attn_tensor *k = &r->p->k, *v = &r->p->v;
    const attn_interval all = {block, keys.hi};
    const bool k_is_panel = is_panel(r, k, r->p->d, all),
               v_is_panel = is_panel(r, v, r->plan->dv_pad, all);
    r->k = k_is_panel ? attn_kv_find(r->p, k, &r->seq, r->kv_head, block, 0) : r->k_space;
    r->v = v_is_panel ? attn_kv_find(r->p, v, &r->seq, r->kv_head, block, 0) : r->v_space;
    for (int64_t key = keys.lo, end; key < keys.hi; key = end) {
        const attn_rows k_rows = attn_key_rows(r->p, k, &r->seq, r->kv_head, key),
                        v_rows = attn_key_rows(r->p, v, &r->seq, r->kv_head, key);
        end = attn_kv_run_end(r->p, &r->seq, key, keys.hi);
        if (!k_is_panel) {
            r->uk->pack_k(r->k_space, key - block, &k_rows, end - key, r->p->d);
        }
        if (!v_is_panel) {
            r->uk->pack_v(r->v_space, key - block, &v_rows, end - key, r->p->dv, r->plan->dv_pad);
        }
    }
}

/* The keys of a block that a strip sees, by its rows' intervals and by the mask tensor. */
static bool sees_block(const attn_item_run *r, int strip, attn_interval all, attn_interval *keys)
{
    return attn_mask_tile(&r->mask[strip], all.lo, all.hi, keys) != ATTN_TILE_SKIP &&
           (!r->scores.cells ||
            attn_score_mask_kind(&r->scores, strip_first(r, strip), strip_lanes(r, strip), *keys) !=
                ATTN_TILE_SKIP);
}

static bool any_sees_block(const attn_item_run *r, int first, int last, attn_interval all)
{
    attn_interval keys;
    bool sees = false;
    for (int i = first; i < last && !sees; i++) {
        sees = sees_block(r, i, all, &keys);
    }
    return sees;
}

/* Notes in masked[] the strips that had a tile with masked positions. */
static void run_blocks(attn_item_run *r, int first, int last, bool careful, bool *masked)
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
    /* pv reads keys up to a multiple of step: the same ones, whichever strips share the item */
    const int64_t end = min64(round_up(hull.hi, step), r->seq.nk);
    attn_host_flush(r->uk->flushes);
    for (int64_t block = hull.lo / size * size; block < hull.hi; block += size) {
        attn_interval all = {max64(block, hull.lo / step * step), min64(block + size, end)}, keys;
        const int64_t tiles = size / r->uk->key_tile, all_tiles = (last - first) * tiles;
        r->next = (attn_interval){all.hi, min64(all.hi + size, hull.hi)};
        r->next_rows = (size + all_tiles - 1) / all_tiles;
        if (r->scores.cells && !any_sees_block(r, first, last, all)) {
            continue;
        }
        pack_block(r, all, block);
        for (int i = first; i < last; i++) {
            if (!sees_block(r, i, all, &keys)) {
                prefetch_rows(r, tiles);
                continue;
            }
            keys.lo -= keys.lo % step;
            masked[i] |= run_block(r, i, keys, block, careful);
        }
    }
    attn_host_flush(false);
}

static void run_item(attn_item_run *r)
{
    bool masked[ATTN_MAX_STRIPS] = {false}, tensors = r->p->bias.data || r->p->mask.data;
    for (int i = 0; i < r->strips; i++) {
        attn_strip_start(r, i);
    }
    run_blocks(r, 0, r->strips, false, masked);
    for (int i = 0; i < r->strips; i++) {
        attn_strip_leave(r, i);
        if ((masked[i] || tensors) &&
            !r->uk->finite(attn_strip_sum(r, i), r->p->dv, strip_lanes(r, i))) {
            attn_strip_reset(r, i);
            run_blocks(r, i, i + 1, true, masked);
            attn_strip_leave(r, i);
        }
        attn_strip_finish(r, i);
    }
}

/* ---- the parallel loop ----------------------------------------------------------------------- */

typedef struct job {
    const attn_cpu_plan *plan;
    const attn_problem *p;
    attn_schedule schedule;
    attn_cells cells;
    char *scratch;
} job;

static void task(const void *arg, int64_t index, int32_t thread)
{
    const job *j = arg;
    const attn_scratch_map *map = &j->plan->scratch;
    const attn_ukernel *uk = j->plan->uk;
    char *base = j->scratch + (uint64_t)thread * map->total;
    attn_rows_mask mask[ATTN_MAX_STRIPS];
    attn_sums sums[ATTN_MAX_STRIPS];
    attn_item item = attn_schedule_item(&j->schedule, j->p, index);
    attn_item_run r = {
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
        .node = base + map->nodes,
        .mask = mask,
        .sums = sums,
    };
    r.scores = (attn_score_run){
        .p = j->p, .uk = uk, .plan = &j->plan->scores, .seq = &r.seq, .fold = j->p->group};
    r.scores.first_head = item.kv_head * j->p->group;
    r.scores.bias = base + map->bias;
    r.scores.cells = j->cells.kind ? &j->cells : NULL;
    attn_score_lanes(&r.scores, base + map->lanes);
    r.last_row = min64(item.last_row, r.seq.nq * j->p->group);
    r.strips = (int)((r.last_row - r.first_row + uk->strip - 1) / uk->strip);
    run_item(&r);
}

void attn_cpu_forward(const attn_cpu_plan *plan, const attn_problem *p,
                      const attn_executor *executor, void *workspace)
{
    job j = {plan, p, plan->schedule, plan->cells, (char *)workspace + plan->table_bytes};
    attn_cells_fill(&j.cells, p, executor, (char *)workspace + plan->cells_at);
    if (p->varlen) {
        int64_t *first_item = workspace, items = 0;
        for (int64_t b = 0; b < plan->schedule.sequences; b++) {
            attn_sequence s = attn_problem_sequence(p, b);
            first_item[b] = items;
            items += attn_schedule_blocks(p, &s, plan->schedule.block_rows) * p->kv_heads;
        }
        first_item[plan->schedule.sequences] = items;
        j.schedule.first_item = first_item;
    }
    attn_tasks_run(executor, plan->schedule.items, task, &j, plan->uk);
}
