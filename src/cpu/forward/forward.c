/*
 * forward.c: the tile loop of the forward pass on the CPU (FlashAttention-2, algorithm 1).
 *
 * A work item is a block of query rows of one KV head. Its rows are cut into strips as wide as the
 * kernels' tiles. The loop over key blocks is outside and the loop over strips inside, so each
 * block of K and V is widened once per item and then serves all strips from the cache; their
 * running state (m, l, OT) waits in the scratch meanwhile:
 *
 *     pack Q of every strip
 *     for each block of keys:            (tiles.h: only blocks that some row sees)
 *         pack K, V
 *         for each strip:                (tiles.h: SKIP | FULL | PARTIAL)
 *             for each tile of keys: S = K QT;  score step if there is one;  mask if PARTIAL;
 *             softmax
 *             OT = OT alpha + V^T P      (nodes.h: at the end of a segment, a node of its own)
 *     for each strip: O = OT / l, LSE
 *
 * A masked position contributes 0 x V, which is NaN if V is not finite there. So the strips of an
 * item that end with a value that is not finite are done again in a walk of their own, carefully:
 * with the special numbers of V apart from the products (cpu/specials.h). Not here: instruction
 * sets (table.h), rows in and out (strip.c), which tiles there are (core/tiles.h), the items and
 * their threads (items.c).
 */
#include "cpu/forward/forward.h"
#include "cpu/forward/nodes.h"
#include "cpu/forward/strip.h"
#include "cpu/forward/pack.h"
#include "cpu/forward/runs.h"
#include "cpu/keys.h"
#include "cpu/machine/host.h"
#include "cpu/specials.h"
#include <float.h>
#include <string.h>

/* ---- one tile: keys keys.lo .. keys.hi-1 of a strip ------------------------------------------ */

/* Prefetches the rows that are due with some tiles, before a softmax, which leaves the cache
 * alone. */
static void prefetch_rows(attn_forward_item *item, int64_t tiles)
{
    const int64_t last = min64(item->next.lo + tiles * item->next_rows, item->next.hi);
    if (item->next.lo < last && !item->by_tile) {
        attn_prefetch_keys(item->problem, &item->problem->k, &item->seq, item->next_head,
                           item->next.lo, last);
        attn_prefetch_keys(item->problem, &item->problem->v, &item->seq, item->next_head,
                           item->next.lo, last);
        item->next.lo = last;
    }
}

/* The keys of a block for one strip. */
typedef struct strip_share {
    int index, lanes;
    int64_t first; /* row */
    const attn_tile_rows *rows;
    const void *qt;
    attn_running state;
    attn_interval keys;
    int64_t first_key; /* first key of the panels */
} strip_share;

/* Notes the data that is read after the keys before `next`: more keys, or the operands of products
 * with V. Members are set one by one: a copy of the struct would wait for stores to them. */
static void look_ahead(attn_forward_item *item, strip_share *share, int64_t next)
{
    const attn_interval keys = share->keys;
    const bool more = next < keys.hi;
    attn_ahead *ahead = &share->state.ahead;
    ahead->soon = item->by_tile ? &item->soon : NULL;
    ahead->k = more ? item->k : NULL;
    ahead->v = more ? NULL : item->v;
    ahead->at = (more ? next : keys.lo) - share->first_key;
    ahead->n = item->by_tile ? 0
               : more        ? min64(keys.hi - next, item->table->key_tile)
                             : keys.hi - keys.lo;
    ahead->cols = more ? item->problem->d : item->plan->dv_pad;
}

static attn_keys keys_of(const attn_forward_item *item, const strip_share *share,
                         attn_interval keys)
{
    return item->k_rows ? attn_rows_at(item, keys, share->qt)
                        : (attn_keys){.k = item->k,
                                      .qt = share->qt,
                                      .d = item->problem->d,
                                      .at = keys.lo - share->first_key,
                                      .n = keys.hi - keys.lo};
}

/* End of the longest run, from key lo on, of tiles that all rows see and whose scores are the
 * products. */
static int64_t plain_end(const attn_forward_item *item, const strip_share *share, int64_t lo)
{
    const int64_t tile = item->table->key_tile, one = min64(lo + tile - lo % tile, share->keys.hi);
    const bool cut = item->by_tile && !item->k_rows;
    return item->special || item->plan->scores.has_score_step || item->problem->dropout.on
               ? lo
               : attn_tiles_uncut(share->rows, (attn_interval){lo, cut ? one : share->keys.hi},
                                  tile);
}

/* Computes scores of products. A scale below the normal numbers would be 0 under flush-to-zero. */
static void score_tile(attn_forward_item *item, const strip_share *share, const attn_tile *tile)
{
    const bool keep = item->table->flushes && item->plan->scores.scale < FLT_MIN;
    if (keep) {
        attn_host_flush(false);
    }
    attn_score_tile_run(&item->scores, item->s, share->first, share->lanes, tile);
    if (keep) {
        attn_host_flush(true);
    }
}

/* Runs a tile that needs the score step, a mask or dropout. */
static void run_tile(attn_forward_item *item, strip_share *share, attn_interval keys)
{
    const attn_ukernel *table = item->table;
    const int64_t n = keys.hi - keys.lo, done = keys.lo - share->keys.lo;
    const attn_tile tile = attn_tile_at(share->rows, keys);
    if (!item->scored) {
        table->qk(item->s, item->k, keys.lo - share->first_key, share->qt, item->problem->d, n,
                  share->lanes);
    }
    score_tile(item, share, &tile);
    if (item->special) {
        attn_specials_seen(table, item->seen + keys.lo - share->first_key, item->s, n,
                           share->lanes);
    }
    table->softmax(item->prob, done, item->s, n, item->plan->scores.exponent, &share->state,
                   share->lanes);
    if (item->problem->dropout.on) {
        attn_score_drop(&item->scores, item->prob, done, share->first, keys.lo, n, true);
    }
}

/* Computes the probabilities of the share's keys. */
static void run_tiles(attn_forward_item *item, strip_share *share)
{
    const int64_t tile = item->table->key_tile;
    for (attn_interval keys = share->keys; keys.lo < share->keys.hi; keys.lo = keys.hi) {
        keys.hi = plain_end(item, share, keys.lo);
        const bool plain = keys.hi > keys.lo;
        if (!plain) {
            keys.hi = min64(keys.lo + tile - keys.lo % tile, share->keys.hi);
        }
        if (item->by_tile) {
            attn_pack_tile(item, share->index, keys, share->first_key, plain);
        }
        look_ahead(item, share, keys.hi);
        prefetch_rows(item, (keys.hi - keys.lo + tile - 1) / tile);
        if (plain && item->scored) {
            item->table->softmax(item->prob, keys.lo - share->keys.lo, item->s, keys.hi - keys.lo,
                                 item->plan->scores.exponent, &share->state, share->lanes);
        } else if (plain) {
            const attn_keys run = keys_of(item, share, keys);
            item->table->qk_softmax(item->prob, keys.lo - share->keys.lo, item->s, &run,
                                    item->plan->scores.exponent, &share->state, share->lanes);
        } else {
            run_tile(item, share, keys);
        }
    }
}

/* Runs the keys that a walk gives of a block, for a strip: probabilities, then their share of
 * OT. */
static void run_block(attn_forward_item *item, int strip_index, attn_interval keys,
                      const attn_walk *walk)
{
    const attn_ukernel *table = item->table;
    const int64_t n = keys.hi - keys.lo, block = walk->first, at = keys.lo - block;
    strip_share share = {strip_index,
                         strip_lanes(item, strip_index),
                         strip_first(item, strip_index),
                         &item->rows[strip_index],
                         strip_qt(item, strip_index),
                         strip_state(item, strip_index),
                         keys,
                         block};
    const void *alpha =
        attn_strip_enter(item, strip_index, block / table->segment) ? NULL : share.state.alpha;
    if (item->special) {
        memset(item->seen, 0, (size_t)table->key_block * sizeof *item->seen);
    }
    if (item->problem->o_f32.data && walk->first > 0 && item->next.lo >= item->next.hi) {
        attn_strip_prefetch(item, strip_index);
    }
    run_tiles(item, &share);
    if (item->by_tile) {
        attn_pack_values(item, item->pack, block);
    }
    if (item->few) {
        attn_values v; /* set member by member, as in look_ahead */
        attn_values_at(item, keys, block, &v);
        table->pv_few(strip_ot(item, strip_index), &v, item->prob, n, alpha, share.lanes);
    } else if (item->by_rows) {
        attn_strip_add_rows(item, strip_index, at, n, alpha, keys.hi == share.rows->mask.hull.hi);
    } else {
        table->pv(strip_ot(item, strip_index), item->v, at, item->prob, item->plan->dv_pad, n,
                  alpha, share.lanes);
    }
    if (item->special) {
        attn_specials_add_keys(table, strip_ot(item, strip_index), &item->specials,
                               item->plan->dv_pad, item->seen, share.lanes);
    }
}

/* ---- all key blocks for strips --------------------------------------------------------------- */

/* True if the table takes rows of so many columns, in groups that share a scale, where they are. */
static bool rows_fit(const attn_forward_item *item, const attn_tensor *tensor, int64_t cols,
                     int64_t groups)
{
    const attn_ukernel *table = item->table;
    return table->takes_rows && tensor->stride[3] == 1 && groups <= ATTN_MAX_KEY_GROUPS &&
           table->takes_rows(tensor->dtype, cols / groups);
}

/* True for so few keys that packing them all at once is fastest. They are one tile; or, for few
 * lanes, so few that calls of the members that read rows where they lie would take longer. */
static bool are_at_once(const attn_forward_item *item, int64_t keys, int lanes)
{
    const attn_ukernel *table = item->table;
    const bool codes = attn_is_code(item->problem->k.dtype) || attn_is_code(item->problem->v.dtype);
    return keys <= (lanes > table->few_lanes ? table->key_tile : codes ? 0 : table->k_keys);
}

/* Chooses the way of an item through K and V. */
static void choose_members(attn_forward_item *item, bool careful, int64_t keys, int lanes)
{
    const attn_problem *problem = item->problem;
    const bool alone = item->strips == 1 || item->heads > 1,
               by_tile =
                   !careful && alone && !are_at_once(item, keys, lanes) && !attn_pack_is_done(item);
    const int64_t groups = attn_code_groups(&problem->v_codes);
    const bool few = by_tile && lanes <= item->table->few_lanes;
    item->by_tile = by_tile;
    item->k_rows =
        few && !attn_is_code(problem->k.dtype) && rows_fit(item, &problem->k, problem->d, 1);
    item->v_rows = few && rows_fit(item, &problem->v, problem->dv, groups);
    item->few = few && (item->table->rows_are_panels ||
                        ((item->k_rows || item->table->qk_codes) && item->v_rows));
    item->k_rows &= item->few, item->v_rows &= item->few;
    item->one_row = item->few && lanes == 1 && item->table->rows_are_panels;
    item->runs = item->few && item->table->takes_run && attn_runs_fit(item);
    item->by_rows = item->plan->by_rows && !item->few && !careful;
}

/* Replaces the panel of V at hand by a copy with 0 for each number that is not finite, and notes
 * these numbers in item->specials. */
static void clean_values(attn_forward_item *item, attn_interval keys, int64_t block)
{
    item->special = item->table->clean_v(item->v_space, item->v, keys.lo - block, keys.hi - keys.lo,
                                         item->plan->dv_pad, &item->specials);
    item->v = item->v_space;
}

/* Packs a block of keys and sets the keys to prefetch after it. `left` begins with the strip at
 * hand. Strips of one head share the block, so that only the first of `strips` opens it; of heads
 * in turn each opens a block of its own. */
static void open_block(attn_forward_item *item, const attn_walk *walk, attn_interval keys,
                       uint64_t strips, uint64_t left, bool careful)
{
    const uint64_t behind = item->heads > 1 ? left & (left - 1) : 0;
    if (item->heads == 1 && left != strips) {
        return;
    }
    item->next =
        behind ? keys
               : (attn_interval){keys.hi, min64(keys.hi + item->table->key_block, walk->left.hi)};
    item->next_head = item->heads == 1
                          ? item->kv_head
                          : item->first_head + __builtin_ctzll(behind ? behind : strips);
    item->pack = keys;
    attn_pack_block(item, keys, walk->first);
    if (careful) {
        clean_values(item, keys, walk->first);
    }
}

/* Runs all blocks of keys for the strips whose bit is set. careful: numbers of V that are not
 * finite are apart. */
static void run_blocks(attn_forward_item *item, uint64_t strips, bool careful)
{
    const int64_t size = item->table->key_block, step = item->table->key_step, nk = item->seq.nk;
    const int first = __builtin_ctzll(strips), last = 64 - __builtin_clzll(strips);
    const bool one = nk <= size; /* block, after which no rows are due */
    const int64_t tiles = one ? 1 : size / item->table->key_tile,
                  all_tiles = (last - first) * tiles;
    const attn_tile_rows rows =
        attn_score_tile_rows(&item->scores, strip_first(item, first),
                             strip_first(item, last - 1) + strip_lanes(item, last - 1), step);
    attn_walk walk = attn_walk_keys(&rows, item->keys, size);
    item->next_rows = one ? 0 : (size + all_tiles - 1) / all_tiles;
    choose_members(item, careful, nk, strip_lanes(item, first));
    attn_pack_open(item);
    if (item->table->flushes) {
        attn_host_flush(true);
    }
    while (attn_runs_then_next(item, &walk)) {
        /* pv reads keys up to a multiple of step, so that bits do not depend on the item's
         * strips */
        const attn_interval all = {walk.tile.keys.lo, min64(round_up(walk.tile.keys.hi, step), nk)};
        for (uint64_t left = strips; left != 0; left &= left - 1) {
            const int i = __builtin_ctzll(left);
            strip_take_head(item, i);
            open_block(item, &walk, all, strips, left, careful);
            const attn_tile tile = attn_tile_at(&item->rows[i], all);
            if (tile.kind == ATTN_TILE_SKIP) {
                prefetch_rows(item, tiles);
            } else {
                run_block(item, i, tile.keys, &walk);
            }
        }
    }
    item->special = false;
    if (item->table->flushes) {
        attn_host_flush(false);
    }
}

void attn_item_start(attn_forward_item *item)
{
    for (int i = 0; i < item->strips; i++) {
        strip_take_head(item, i);
        attn_strip_start(item, i);
    }
}

void attn_item_sum(attn_forward_item *item)
{
    run_blocks(item, ~(uint64_t)0 >> (64 - item->strips), false);
}

/* Sums the strips again whose results are not finite. */
static void mend(attn_forward_item *item)
{
    uint64_t strips = 0;
    for (int i = 0; i < item->strips; i++) {
        strip_take_head(item, i);
        if (!attn_strip_is_finite(item, i)) {
            attn_strip_reset(item, i);
            strips |= (uint64_t)1 << i;
        }
    }
    if (strips != 0) {
        run_blocks(item, strips, true);
    }
    for (; strips != 0; strips &= strips - 1) {
        attn_strip_leave(item, __builtin_ctzll(strips));
    }
}

void attn_item_finish(attn_forward_item *item)
{
    mend(item);
    for (int i = 0; i < item->strips; i++) {
        strip_take_head(item, i);
        attn_strip_finish(item, i);
    }
}
