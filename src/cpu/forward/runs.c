/*
 * runs.c: see runs.h.
 */
#include "cpu/forward/runs.h"
#include "cpu/forward/nodes.h"
#include "cpu/forward/pack.h"
#include "cpu/keys.h"

enum { MOST_MORE = 64 }; /* rows behind a run that are fetched meanwhile */

/* True for rows, of one head, that lie side by side. */
static bool are_side_by_side(const attn_tensor *tensor)
{
    return tensor->stride[1] == tensor->shape[3];
}

/* True for an item of one row. Its kernel takes no list of rows, but the first row of keys that lie
 * side by side. */
static bool has_one_row(const attn_forward_item *item)
{
    return strip_lanes(item, 0) == 1;
}

/* A run of no keys yet. */
static attn_key_run empty_run(const attn_forward_item *item)
{
    const attn_problem *problem = item->problem;
    const bool apart =
        item->heads > 1 || !are_side_by_side(&problem->k) || !are_side_by_side(&problem->v);
    const bool small_pages = problem->paged && problem->k.shape[1] < ATTN_KEY_BLOCK;
    return (attn_key_run){.d = problem->d,
                          .dv = problem->dv,
                          .dtype = problem->k.dtype,
                          .k_groups = attn_code_groups(&problem->k_codes),
                          .v_groups = attn_code_groups(&problem->v_codes),
                          .lanes = strip_lanes(item, 0),
                          .apart = apart,
                          .scattered = apart && small_pages};
}

bool attn_runs_fit(const attn_forward_item *item)
{
    const attn_problem *problem = item->problem;
    const bool plain = !item->plan->scores.has_score_step && !problem->dropout.on;
    const attn_key_run run = empty_run(item);
    return plain && problem->k.dtype == problem->v.dtype && problem->k.stride[3] == 1 &&
           problem->v.stride[3] == 1 && max64(run.k_groups, run.v_groups) <= ATTN_MAX_KEY_GROUPS &&
           item->table->takes_run(&run);
}

/* The most keys of a run: as many rows, and scales of codes, as there is room to list. */
static int64_t most_keys(const attn_forward_item *item)
{
    const attn_problem *problem = item->problem;
    const int64_t keys = ATTN_MAX_KEY_BLOCK - MOST_MORE, block = ATTN_KEY_BLOCK,
                  factors = block * ATTN_MAX_KEY_GROUPS,
                  groups = max64(attn_code_groups(&problem->k_codes),
                                 attn_code_groups(&problem->v_codes)),
                  most = min64(keys, factors / groups);
    return has_one_row(item) ? item->table->segment : most - most % block;
}

/* The end of the run that begins at the first key left. A run is whole blocks of one segment; only
 * at the end of all keys it may end within a block. A run of no keys: those at hand need a tile. */
static int64_t run_end(const attn_forward_item *item, attn_interval left)
{
    const attn_ukernel *table = item->table;
    const int64_t size = table->key_block, segment = left.lo - left.lo % table->segment,
                  most = min64(left.lo + most_keys(item), segment + table->segment);
    const attn_interval keys = {left.lo, min64(left.hi, most)};
    if (left.lo % size != 0) {
        return left.lo;
    }
    const int64_t uncut = attn_tiles_uncut(item->rows, keys, size),
                  end = has_one_row(item)
                            ? attn_kv_run_end(item->problem, &item->seq, left.lo, uncut)
                            : uncut;
    return end == left.hi ? end : end - end % size;
}

/* Lists the rows of a run's keys, and behind them the rows that are read after the run, so that the
 * kernel can fetch them ahead. Returns the number of the latter. */
static int64_t list_run(attn_forward_item *item, attn_interval keys, attn_interval next,
                        int64_t next_head)
{
    const int64_t n = has_one_row(item) ? 1 : keys.hi - keys.lo,
                  more = has_one_row(item) ? 0 : min64(next.hi - next.lo, MOST_MORE);
    attn_list_keys(item, item->list, 0, (attn_interval){keys.lo, keys.lo + n}, item->kv_head);
    attn_list_keys(item, item->list, n, (attn_interval){next.lo, next.lo + more}, next_head);
    return more;
}

/* Sums a run of keys for a strip. left: the keys of the walk behind the run. */
static void run_keys(attn_forward_item *item, int strip_index, attn_interval keys,
                     attn_interval left)
{
    const bool last = strip_index + 1 == item->strips;
    const int64_t next_head = last ? item->kv_head - strip_index : item->kv_head + 1;
    const bool first = attn_strip_enter(item, strip_index, keys.lo / item->table->segment);
    const attn_running state = strip_state(item, strip_index);
    attn_key_run run = empty_run(item);
    run.more = list_run(item, keys, last ? left : keys, next_head);
    run.k = item->list->k, run.v = item->list->v;
    run.qt = strip_qt(item, strip_index);
    run.n = keys.hi - keys.lo;
    if (attn_is_code(run.dtype)) {
        attn_key_factors *factors = item->factors;
        attn_list_factors(item, true, keys, factors->k_scale, factors->k_shift);
        attn_list_factors(item, false, keys, factors->scale, factors->shift);
        run.k_scale = factors->k_scale, run.k_shift = factors->k_shift;
        run.v_scale = factors->scale, run.v_shift = factors->shift;
    }
    item->table->run_rows(strip_ot(item, strip_index), &run, item->plan->scores.exponent, &state,
                          first);
}

bool attn_runs_then_next(attn_forward_item *item, attn_walk *walk)
{
    while (item->runs && walk->left.lo < walk->left.hi) {
        const int64_t end = run_end(item, walk->left);
        const attn_interval keys = {walk->left.lo, end};
        if (end <= walk->left.lo) {
            break;
        }
        walk->left.lo = end;
        for (int i = 0; i < item->strips; i++) {
            strip_take_head(item, i);
            run_keys(item, i, keys, walk->left);
        }
        /* the run has overwritten the list: pack.c must not take it for a block's */
        item->list[0].keys = (attn_interval){-1, -1};
    }
    return attn_walk_next(walk);
}
