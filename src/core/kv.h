/*
 * kv.h: where the rows of K and V lie: (sequence, KV head, key) -> address, and how many keys from
 * there on lie in one run, a stride of the tensor apart. The only place that knows it. Dense,
 * padded and varlen keys are one run; a page is a run. C and CUDA.
 */
#ifndef ATTN_CORE_KV_H
#define ATTN_CORE_KV_H

#include "core/problem.h"

/* The row of key `key` in tensor index 1, of keys that are not paged; else its number among the
 * rows of the sequence's pages. */
ATTN_CORE int64_t attn_kv_row(const attn_sequence *sequence, int64_t key)
{
    return sequence->k_first + key;
}

/* Element `column` of a key's row in K, V or a tensor of their shape, not paged. */
ATTN_CORE char *attn_kv_at(const attn_tensor *tensor, const attn_sequence *sequence,
                           int64_t kv_head, int64_t key, int64_t column)
{
    return attn_at(tensor, sequence->tensor, attn_kv_row(sequence, key), kv_head, column);
}

/* Entry `page` of sequence b in the table, whatever it says. */
ATTN_CORE int64_t attn_kv_entry(const attn_tensor *table, int64_t b, int64_t page)
{
    const int64_t at = b * table->stride[0] + page * table->stride[1];
    return table->dtype == ATTN_I32 ? ((const int32_t *)table->data)[at]
                                    : ((const int64_t *)table->data)[at];
}

/* A key's indices in the first two axes of K and V, paged or not. */
typedef struct attn_kv_place {
    int64_t tensor, row;
} attn_kv_place;

/* A page that the table names wrongly, which only a GPU's table can, is cut to those there are. */
ATTN_CORE attn_kv_place attn_kv_locate(const attn_problem *problem, const attn_sequence *sequence,
                                       int64_t key)
{
    attn_kv_place place = {sequence->tensor, attn_kv_row(sequence, key)};
    if (problem->paged) {
        const int64_t size = problem->k.shape[1], page = place.row / size;
        const int64_t entry = attn_kv_entry(&problem->table, sequence->index, page);
        place.tensor = attn_clamp(entry, 0, problem->k.shape[0] - 1);
        place.row -= page * size;
    }
    return place;
}

/* attn_kv_at, paged or not. */
ATTN_CORE char *attn_kv_find(const attn_problem *problem, const attn_tensor *tensor,
                             const attn_sequence *sequence, int64_t kv_head, int64_t key,
                             int64_t column)
{
    const attn_kv_place place = attn_kv_locate(problem, sequence, key);
    return attn_at(tensor, place.tensor, place.row, kv_head, column);
}

/* Group 0 of a key's scale or shift: it lies as the row does, but for axes that rows share. */
ATTN_CORE char *attn_kv_factor(const attn_problem *problem, const attn_tensor *factor,
                               const attn_sequence *sequence, int64_t kv_head, int64_t key)
{
    const attn_kv_place place = attn_kv_locate(problem, sequence, key);
    return attn_at_broadcast(factor, place.tensor, place.row, kv_head, 0);
}

/* The end of the run that key first is in, at most last. */
ATTN_CORE int64_t attn_kv_run_end(const attn_problem *problem, const attn_sequence *sequence,
                                  int64_t first, int64_t last)
{
    if (!problem->paged) {
        return last;
    }
    const int64_t size = problem->k.shape[1], row = attn_kv_row(sequence, first);
    const int64_t end = first + size - row % size;
    return end < last ? end : last;
}

#endif
