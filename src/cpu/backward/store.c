/*
 * store.c: sums of dQ, dK and dV as rows of the results.
 */
#include "core/half.h"
#include "cpu/backward/tile.h"
#include "cpu/keys.h"
#include <math.h>

/* Replaces n elements of a result, done carefully, where the stored one is not finite. The others
 * stay: on some tables the careful way sums in another order, and bits must not depend on the rest
 * of the item. */
static void mend(const attn_grad_run *r, char *to, int64_t stride, int32_t dtype, const char *from,
                 int64_t step, int64_t n)
{
    for (int64_t i = 0; i < n; i++, to += stride * attn_element_size(dtype)) {
        if (!isfinite(attn_element_to_f64(to, dtype))) {
            attn_element_from_f64(to, dtype, get_real(r->uk, from, i * step));
        }
    }
}

/* Prefetches the places of a few rows at a time: one after the other, stores would wait for
 * each. */
bool attn_grad_store_keys(const attn_grad_run *r, int64_t first, int64_t last)
{
    enum { ROWS = 16 };
    const attn_tensor *t[2] = {&r->g->dk, &r->g->dv};
    const char *sums[2] = {r->dk, r->dv};
    const int64_t pad[2] = {r->plan->d_pad, r->plan->dv_pad};
    bool finite = true;
    for (int i = 0; i < 2; i++) {
        const int64_t cols = t[i]->shape[3];
        for (int64_t key = first, end; key < last && t[i]->data; key = end) {
            char *to = attn_kv_at(t[i], &r->seq, r->kv_head, key, 0);
            const attn_rows rows = attn_key_rows(r->p, t[i], &r->seq, r->kv_head, key);
            end = attn_kv_run_end(r->p, &r->seq, key, min64(key + ROWS, last));
            const int64_t n = end - key;
            attn_prefetch_keys(r->p, t[i], &r->seq, r->kv_head, key, end);
            const char *from = sums[i] + (key - first) * pad[i] * r->uk->real_size;
            const int64_t step = rows.row_stride * attn_element_size(rows.dtype),
                          line = pad[i] * r->uk->real_size;
            for (int64_t row = 0; row < n && r->careful; row++) {
                mend(r, to + row * step, rows.col_stride, rows.dtype, from + row * line, 1, cols);
            }
            if (!r->careful) {
                finite &= r->grad->put(to, rows.row_stride, rows.col_stride, rows.dtype, from,
                                       pad[i], cols, n);
            }
        }
    }
    return finite;
}

bool attn_grad_store_rows(attn_grad_run *r, int64_t first, int64_t last)
{
    const attn_tensor *dq = &r->g->dq;
    bool finite = true;
    for (int64_t row = first; row < last; row += r->uk->strip) {
        void *rows[ATTN_MAX_STRIP];
        const char *dqt = r->dqt + (row - first) * r->plan->d_pad * r->uk->real_size;
        int lanes = (int)min64(last - row, r->uk->strip);
        for (int lane = 0; lane < lanes; lane++) {
            lane_row at = attn_score_row(&r->scores, row + lane);
            rows[lane] = attn_at(dq, r->seq.tensor, r->seq.q_first + at.query, at.head, 0);
            attn_prefetch_row(&(attn_rows){rows[lane], 0, dq->stride[3], dq->dtype}, 0,
                              dq->shape[3]);
        }
        for (int lane = 0; lane < lanes && r->careful; lane++) {
            mend(r, rows[lane], dq->stride[3], dq->dtype, dqt + lane * r->uk->real_size,
                 r->uk->strip, r->p->d);
        }
        if (!r->careful) {
            r->uk->store(rows, dq->stride[3], dq->dtype, dqt, r->p->d, NULL, lanes);
        }
        finite = finite && r->uk->finite(dqt, r->p->d, lanes);
    }
    return finite;
}
