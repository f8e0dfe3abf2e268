/*
 * schedule.h: work item <-> (sequence, KV head, block of rows).
 *
 * The rows of a KV head are its queries with the heads of the group folded in, query-major: row r
 * is query r / group of head r % group. So a GQA group shares one pass over K and V, and
 * neighbouring rows see nearly the same keys. An item is a block of `block_rows` rows. No result
 * depends on the cut into items or on the threads that run them.
 */
#ifndef ATTN_CORE_SCHEDULE_H
#define ATTN_CORE_SCHEDULE_H

#include "core/problem.h"

typedef struct attn_schedule {
    int64_t block_rows;
    int64_t items;
    int64_t sequences;
    /* KV heads of sequences of equal length whose blocks take turns, a divisor of all; 0: all */
    int64_t beside;
    /* [sequences + 1] when lengths differ, else NULL: every sequence has the same number */
    const int64_t *first_item;
} attn_schedule;

typedef struct attn_item {
    int64_t sequence, kv_head;
    int64_t first_row, last_row; /* last exclusive; not yet cut to the sequence's rows */
} attn_item;

static inline int64_t attn_schedule_blocks(const attn_problem *problem,
                                           const attn_sequence *sequence, int64_t block_rows)
{
    int64_t rows = sequence->nq * problem->group;
    return rows / block_rows + (rows % block_rows != 0);
}

/* Later blocks first: under a causal mask they are the heaviest. Those of a few heads come before
 * all others, so that a thread finds K and V of a head in its cache again. */
static inline attn_item attn_schedule_item(const attn_schedule *schedule,
                                           const attn_problem *problem, int64_t index)
{
    const int64_t heads = problem->kv_heads, rows = schedule->block_rows;
    int64_t sequence, head, block;
    if (schedule->first_item == NULL) {
        /* comparisons where they do: divisions are slow */
        const int64_t columns = schedule->sequences * heads, beside = schedule->beside;
        int64_t before = index < columns ? 0 : index / columns, column = index - before * columns;
        const int64_t blocks = schedule->items == columns ? 1 : schedule->items / columns;
        if (beside > 0 && blocks > 1) {
            const int64_t first = index / (beside * blocks) * beside;
            before = index / beside - first / beside * blocks;
            column = first + index % beside;
        }
        sequence = column < heads ? 0 : column / heads;
        head = column - sequence * heads;
        block = blocks - 1 - before;
    } else {
        int64_t lo = 0, hi = schedule->sequences; /* first_item[lo] <= index < first_item[hi] */
        while (hi - lo > 1) {
            int64_t mid = lo + (hi - lo) / 2;
            *(schedule->first_item[mid] <= index ? &lo : &hi) = mid;
        }
        const int64_t within = index - schedule->first_item[lo];
        sequence = lo;
        head = within % heads;
        block =
            (schedule->first_item[lo + 1] - schedule->first_item[lo]) / heads - 1 - within / heads;
    }
    return (attn_item){sequence, head, block * rows, (block + 1) * rows};
}

#endif
