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

/* attn_kv_at, paged or not. A page that the table names wrongly, which only a GPU's table can, is
 * cut to those there are. */
ATTN_CORE char *attn_kv_find(const attn_problem *problem, const attn_tensor *tensor,
                             const attn_sequence *sequence, int64_t kv_head, int64_t key,
                             int64_t column)
{
    if (!problem->paged) {
        return attn_kv_at(tensor, sequence, kv_head, key, column);
    }
    const int64_t row = attn_kv_row(sequence, key), size = tensor->shape[1], page = row / size;
    const int64_t entry = attn_kv_entry(&problem->table, sequence->index, page);
    return attn_at(tensor, attn_clamp(entry, 0, tensor->shape[0] - 1), row - page * size, kv_head,
                   column);
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
