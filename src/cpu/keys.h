/*
 * keys.h: rows of K and V, or of their gradients, as kernels take them, and towards the
 * second-level cache. Where they lie is the business of core/kv.h.
 */
#ifndef ATTN_CPU_KEYS_H
#define ATTN_CPU_KEYS_H

#include "core/kv.h"
#include "cpu/prefetch.h"

/* Rows of the run that begins at `key`. */
static inline attn_rows attn_key_rows(const attn_problem *problem, const attn_tensor *tensor,
                                      const attn_sequence *sequence, int64_t kv_head, int64_t key)
{
    return (attn_rows){attn_kv_find(problem, tensor, sequence, kv_head, key, 0), tensor->stride[1],
                       tensor->stride[3], tensor->dtype, NULL};
}

/* Keys first .. last-1 towards the cache. */
static inline void attn_prefetch_keys(const attn_problem *problem, const attn_tensor *tensor,
                                      const attn_sequence *sequence, int64_t kv_head, int64_t first,
                                      int64_t last)
{
    for (int64_t key = first, end; key < last; key = end) {
        const attn_rows rows = attn_key_rows(problem, tensor, sequence, kv_head, key);
        end = attn_kv_run_end(problem, sequence, key, last);
        for (int64_t i = 0; i < end - key; i++) {
            attn_prefetch_row(&rows, i, tensor->shape[3]);
        }
    }
}

#endif
