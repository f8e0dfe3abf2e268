/*
 * kv.h: where the rows of K and V lie: (sequence, KV head, key) -> address, and how many keys from
 * there on lie in one run, a stride of the tensor apart. The only place that knows it. Dense,
 * padded and varlen keys are one run; pages or quantised rows are further cases to add here, and
 * the CPU's callers go from run to run already. C and CUDA.
 */
#ifndef ATTN_CORE_KV_H
#define ATTN_CORE_KV_H

#include "core/problem.h"

/* The row of key `key` in tensor index 1. */
ATTN_CORE int64_t attn_kv_row(const attn_sequence *s, int64_t key)
{
    return s->k_first + key;
}

/* Element `column` of a key's row in K, V or a tensor of their shape. */
ATTN_CORE char *attn_kv_at(const attn_tensor *t, const attn_sequence *s, int64_t kv_head,
                           int64_t key, int64_t column)
{
    return attn_at(t, s->tensor, attn_kv_row(s, key), kv_head, column);
}

/* The end of the run that key first is in, at most last. */
ATTN_CORE int64_t attn_kv_run_end(const attn_sequence *s, int64_t first, int64_t last)
{
    (void)s, (void)first;
    return last;
}

#endif
