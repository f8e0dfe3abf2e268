/*
 * store.c: sums of dQ, dK and dV as rows of the results.
 */
#include "core/half.h"
#include "cpu/backward/tile.h"
#include "cpu/keys.h"
#include <math.h>

/* Prefetches the places of a few rows at a time: one after the other, stores would wait for
 * each. */
bool attn_grad_store_keys(const attn_grad_item *item, int64_t first, int64_t last)
{
    enum { ROWS = 16 };
    const attn_tensor *t[2] = {&item->grads->dk, &item->grads->dv};
    const char *sums[2] = {item->dk, item->dv};
    const int64_t pad[2] = {item->plan->d_pad, item->plan->dv_pad};
    bool finite = true;
    for (int i = 0; i < 2; i++) {
        const int64_t cols = t[i]->shape[3];
        for (int64_t key = first, end; key < last && t[i]->data; key = end) {
            char *to = attn_kv_at(t[i], &item->seq, item->kv_head, key, 0);
            attn_rows rows;
            attn_key_rows(item->problem, t[i], &item->seq, item->kv_head, key, &rows);
            end = attn_kv_run_end(item->problem, &item->seq, key, min64(key + ROWS, last));
            const int64_t n = end - key;
            attn_prefetch_keys(item->problem, t[i], &item->seq, item->kv_head, key, end);
            const char *from = sums[i] + (key - first) * pad[i] * item->table->real_size;
            finite &= item->grad->put(to, rows.row_stride, rows.col_stride, rows.dtype, from,
                                      pad[i], cols, n);
        }
    }
    return finite;
}

bool attn_grad_store_rows(attn_grad_item *item, int64_t first, int64_t last)
{
    const attn_tensor *dq = &item->grads->dq;
    bool finite = true;
    for (int64_t row = first; row < last; row += item->table->strip) {
        void *rows[ATTN_MAX_STRIP];
        const char *dqt =
            item->dq_block + (row - first) * item->plan->d_pad * item->table->real_size;
        int lanes = (int)min64(last - row, item->table->strip);
        for (int lane = 0; lane < lanes; lane++) {
            lane_row at = attn_score_row(&item->scores, row + lane);
            rows[lane] = attn_at(dq, item->seq.tensor, item->seq.q_first + at.query, at.head, 0);
            attn_prefetch_row(&(attn_rows){rows[lane], 0, dq->stride[3], dq->dtype, NULL, {0}}, 0,
                              dq->shape[3]);
        }
        item->table->store(rows, dq->stride[3], dq->dtype, dqt, item->problem->d, NULL, lanes);
        finite = finite && item->table->finite(dqt, item->problem->d, lanes);
    }
    return finite;
}
