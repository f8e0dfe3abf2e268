/*
 * pack.c: see pack.h.
 */
#include "cpu/forward/pack.h"
#include "cpu/keys.h"

/* True for rows that already are a panel and need no packing. */
static bool is_panel(const attn_forward_item *item, const attn_tensor *tensor, int64_t cols,
                     attn_interval block)
{
    return item->table->rows_are_panels &&
           attn_kv_run_end(item->problem, &item->seq, block.lo, block.hi) == block.hi &&
           tensor->dtype == (item->table->real_size == 4 ? ATTN_F32 : ATTN_F64) &&
           tensor->stride[3] == 1 && tensor->stride[1] == cols && tensor->shape[3] == cols;
}

/* The rows of K that begin at `key`, with their scales. */
static attn_rows rows_of_k(attn_forward_item *item, int64_t key)
{
    const attn_problem *problem = item->problem;
    attn_rows rows = attn_key_rows(problem, &problem->k, &item->seq, item->kv_head, key);
    rows.soon = item->by_tile ? &item->soon : NULL;
    rows.codes =
        attn_key_codes(problem, &problem->k_codes, &item->seq, item->kv_head, key, problem->d);
    return rows;
}

/* Packs keys of the block that begins at key `block`, run by run. */
static void pack_keys(attn_forward_item *item, attn_interval keys, int64_t block)
{
    const attn_problem *problem = item->problem;
    const attn_ukernel *table = item->table;
    for (int64_t key = keys.lo, end; key < keys.hi; key = end) {
        const attn_rows k_rows = rows_of_k(item, key);
        attn_rows v_rows = attn_key_rows(problem, &problem->v, &item->seq, item->kv_head, key);
        v_rows.soon = k_rows.soon;
        v_rows.codes =
            attn_key_codes(problem, &problem->v_codes, &item->seq, item->kv_head, key, problem->dv);
        end = attn_kv_run_end(problem, &item->seq, key, keys.hi);
        if (item->k == item->k_space && !item->k_tile && !item->scored) {
            table->pack_k(item->k_space, key - block, &k_rows, end - key, problem->d);
        }
        if (item->v == item->v_space) {
            (item->few ? table->pack_v_few : table->pack_v)(
                item->v_space, key - block, &v_rows, end - key, problem->dv, item->plan->dv_pad);
        }
    }
}

void attn_pack_block(attn_forward_item *item, attn_interval keys, int64_t block)
{
    const attn_tensor *k = &item->problem->k, *v = &item->problem->v;
    const attn_interval all = {block, keys.hi};
    const bool k_is_panel = is_panel(item, k, item->problem->d, all),
               v_is_panel = is_panel(item, v, item->plan->dv_pad, all);
    item->k = k_is_panel ? attn_kv_find(item->problem, k, &item->seq, item->kv_head, block, 0)
                         : item->k_space;
    item->v = v_is_panel ? attn_kv_find(item->problem, v, &item->seq, item->kv_head, block, 0)
                         : item->v_space;
    item->pack = keys, item->k_tile = NULL, item->scored = false;
    if (!item->by_tile) {
        pack_keys(item, keys, block);
    }
}

/* Lists the addresses of rows of K or V, run by run. */
static void note_soon(attn_forward_item *item, const attn_tensor *tensor, attn_interval keys)
{
    const int64_t step = tensor->stride[1] * attn_element_size(tensor->dtype);
    for (int64_t key = keys.lo, end; key < keys.hi; key = end) {
        const char *row = attn_kv_find(item->problem, tensor, &item->seq, item->kv_head, key, 0);
        end = attn_kv_run_end(item->problem, &item->seq, key, keys.hi);
        for (int64_t i = 0; i < end - key; i++) {
            item->soon_row[item->soon.rows++] = row + i * step;
        }
    }
}

/* Rows of K that scores are computed from where they are: one run of a whole tile; or NULL. */
static const void *rows_in_place(const attn_forward_item *item, attn_interval keys)
{
    const attn_problem *problem = item->problem;
    const attn_ukernel *table = item->table;
    return item->few && problem->k.dtype == table->k_rows && problem->k.stride[3] == 1 &&
                   problem->d % table->granule == 0 && problem->k.stride[1] > 0 &&
                   keys.hi - keys.lo == table->key_tile &&
                   attn_kv_run_end(problem, &item->seq, keys.lo, keys.hi) == keys.hi
               ? attn_kv_find(problem, &problem->k, &item->seq, item->kv_head, keys.lo, 0)
               : NULL;
}

/* Scores of a tile straight from quantised rows; false if the table does not take them. */
static bool score_codes(attn_forward_item *item, attn_interval keys)
{
    const attn_problem *problem = item->problem;
    const attn_ukernel *table = item->table;
    bool done = table->qk_codes && attn_is_code(problem->k.dtype);
    for (int64_t key = keys.lo, end; done && key < keys.hi; key = end) {
        const attn_rows rows = rows_of_k(item, key);
        end = attn_kv_run_end(problem, &item->seq, key, keys.hi);
        done = table->qk_codes(item->s + (key - keys.lo) * table->strip * table->real_size, &rows,
                               strip_qt(item, 0), problem->d, end - key, strip_lanes(item, 0));
    }
    return done;
}

void attn_pack_tile(attn_forward_item *item, attn_interval keys, int64_t block, bool last,
                    bool plain)
{
    const attn_problem *problem = item->problem;
    const int64_t k_bytes = problem->k.shape[3] * attn_element_size(problem->k.dtype),
                  v_bytes = problem->v.shape[3] * attn_element_size(problem->v.dtype);
    const attn_interval next = {keys.hi, min64(keys.hi + item->table->key_tile, item->next.hi)};
    const attn_interval pack = {item->pack.lo, last ? item->pack.hi : keys.hi};
    attn_fetch_soon(&item->soon, INT64_MAX); /* rows of this tile that are not fetched yet */
    item->soon = (attn_soon){.row = item->soon_row, .bytes = max64(k_bytes, v_bytes)};
    note_soon(item, &problem->k, next);
    note_soon(item, &problem->v, next);
    item->k_tile = plain ? rows_in_place(item, keys) : NULL;
    item->soon.each = item->k_tile ? 2 : 0;
    item->scored = score_codes(item, keys);
    pack_keys(item, pack, block);
    item->pack.lo = pack.hi;
}
