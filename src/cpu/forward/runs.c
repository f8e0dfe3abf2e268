/*
 * runs.c: see runs.h.
 */
#include "cpu/forward/runs.h"
#include "cpu/forward/nodes.h"

/* True for rows, of one head, that lie side by side. */
static bool are_side_by_side(const attn_tensor *tensor)
{
    return tensor->stride[3] == 1 && tensor->stride[1] == tensor->shape[3];
}

bool attn_runs_fit(const attn_forward_item *item)
{
    const attn_problem *problem = item->problem;
    const bool plain = !item->plan->scores.has_score_step && !problem->dropout.on;
    return plain && item->heads == 1 && problem->k.dtype == problem->v.dtype &&
           are_side_by_side(&problem->k) && are_side_by_side(&problem->v) &&
           item->table->takes_run(problem->k.dtype, problem->d, problem->dv, strip_lanes(item, 0));
}

/* End of the keys that lie side by side, from the first one left on: of whole blocks of a segment,
 * or of all. */
static int64_t run_end(const attn_forward_item *item, attn_interval left)
{
    const attn_ukernel *table = item->table;
    const int64_t size = table->key_block, segment = left.lo - left.lo % table->segment;
    const attn_interval keys = {left.lo, min64(left.hi, segment + table->segment)};
    const int64_t uncut = attn_tiles_uncut(item->rows, keys, size),
                  end = attn_kv_run_end(item->problem, &item->seq, left.lo, uncut);
    return left.lo % size != 0 ? left.lo : end == left.hi ? end : end - end % size;
}

static void run_keys(attn_forward_item *item, attn_interval keys)
{
    const attn_problem *problem = item->problem;
    const attn_sequence *seq = &item->seq;
    const attn_key_run run = {attn_kv_find(problem, &problem->k, seq, item->kv_head, keys.lo, 0),
                              attn_kv_find(problem, &problem->v, seq, item->kv_head, keys.lo, 0),
                              strip_qt(item, 0),
                              problem->d,
                              problem->dv,
                              keys.hi - keys.lo,
                              problem->k.dtype,
                              strip_lanes(item, 0)};
    const bool first = attn_strip_enter(item, 0, keys.lo / item->table->segment);
    const attn_running state = strip_state(item, 0);
    item->table->run_rows(strip_ot(item, 0), &run, item->plan->scores.exponent, &state, first);
}

bool attn_runs_then_next(attn_forward_item *item, attn_walk *walk)
{
    while (item->runs && walk->left.lo < walk->left.hi) {
        const int64_t end = run_end(item, walk->left);
        if (end <= walk->left.lo) {
            break;
        }
        run_keys(item, (attn_interval){walk->left.lo, end});
        walk->left.lo = end;
    }
    return attn_walk_next(walk);
}
