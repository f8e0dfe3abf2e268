/*
 * keys.h: rows of K and V, or of their gradients, as kernels take them, and towards the
 * second-level cache. Where they lie is the business of core/kv.h.
 */
#ifndef ATTN_CPU_KEYS_H
#define ATTN_CPU_KEYS_H

#include "core/kv.h"
#include "cpu/prefetch.h"

/* Rows of the run that begins at `key`, in *rows. Its members are written where they lie: a copy of
 * the struct would wait for stores to them. */
static inline void attn_key_rows(const attn_problem *problem, const attn_tensor *tensor,
                                 const attn_sequence *sequence, int64_t kv_head, int64_t key,
                                 attn_rows *rows)
{
    *rows = (attn_rows){
        .row_stride = tensor->stride[1], .col_stride = tensor->stride[3], .dtype = tensor->dtype};
    rows->data = attn_kv_find(problem, tensor, sequence, kv_head, key, 0);
}

/* Groups of columns of a row of K or V that share a scale. */
static inline int64_t attn_code_groups(const attn_codes *codes)
{
    const int64_t groups = attn_tensor_present(codes->scale) ? codes->scale->shape[3] : 1;
    return groups > 1 ? groups : 1;
}

/* Scales and shifts of these rows, of `columns` columns; none unless they are quantised. */
static inline void attn_key_codes(const attn_problem *problem, const attn_codes *codes,
                                  const attn_sequence *sequence, int64_t kv_head, int64_t key,
                                  int64_t columns, attn_row_codes *rows)
{
    const attn_tensor *scale = codes->scale, *shift = codes->shift;
    *rows = (attn_row_codes){.group = columns};
    if (attn_tensor_present(scale)) {
        rows->scale = attn_kv_factor(problem, scale, sequence, kv_head, key);
        rows->scale_row = scale->shape[1] == 1 ? 0 : scale->stride[1];
        rows->scale_group = scale->stride[3];
        rows->group = columns / scale->shape[3], rows->dtype = scale->dtype;
    }
    if (attn_tensor_present(shift)) {
        rows->shift = attn_kv_factor(problem, shift, sequence, kv_head, key);
        rows->shift_row = shift->shape[1] == 1 ? 0 : shift->stride[1];
        rows->shift_group = shift->stride[3];
    }
}

/* Keys first .. last-1 towards the cache. */
static inline void attn_prefetch_keys(const attn_problem *problem, const attn_tensor *tensor,
                                      const attn_sequence *sequence, int64_t kv_head, int64_t first,
                                      int64_t last)
{
    const int64_t size = attn_element_size(tensor->dtype), step = tensor->stride[1] * size,
                  lines = (tensor->shape[3] * size + 63) / 64, line = 64 * tensor->stride[3];
    for (int64_t key = first, end; key < last; key = end) {
        const char *row = attn_kv_find(problem, tensor, sequence, kv_head, key, 0);
        end = attn_kv_run_end(problem, sequence, key, last);
        for (int64_t i = 0; i < end - key; i++, row += step) {
            const char *at = row;
            for (int64_t left = lines; left > 0; left--, at += line) {
                ATTN_PREFETCH(at);
            }
        }
    }
}

#endif
