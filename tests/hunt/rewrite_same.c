/*
 * rewrite_same.c: results of the two forms of a problem beside each other. See rewrite.h.
 */
#include "half.h"
#include "oracle.h"
#include "rewrite_parts.h"

#include <math.h>
#include <stdio.h>

static bool same_number(double x, double y)
{
    return isnan(x) ? isnan(y) : x == y && signbit(x) == signbit(y);
}

/* One row of a result: its heads and columns. */
static bool same_row(const attn_tensor *got, struct at there, const attn_tensor *want,
                     struct at here, int64_t first_head)
{
    bool same = true;
    for (int64_t h = 0; h < got->shape[2]; h++) {
        for (int64_t c = 0; c < got->shape[3]; c++) {
            const double x = oracle_element(got, there.outer, there.row, h, c);
            double y = oracle_element(want, here.outer, here.row, first_head + h, c);
            y = got->dtype == want->dtype ? y : half_rounded(got->dtype, y);
            same = same && same_number(x, y);
        }
    }
    return same;
}

/* Compares rows of queries, or of keys, of the sequences of the second form. */
static bool same_rows(const rewritten *r, const attn_tensor *got, const attn_tensor *want,
                      bool keys, const char *name, char *sentence, size_t size)
{
    const int64_t group = keys ? 1 : r->was.hkv > 0 ? r->was.hq / r->was.hkv : 0;
    for (int64_t b = 0; got->data && b < r->was.b; b++) {
        const int64_t rows = keys ? keys_of(&r->was, b) : rows_of(&r->was, b);
        for (int64_t i = 0; (r->sequence < 0 || r->sequence == b) && i < rows; i++) {
            const struct at here = keys ? place_key(&r->was, NULL, b, i) : place_row(&r->was, b, i);
            struct at there = keys ? place_key(&r->is, NULL, b, i) : place_row(&r->is, b, i);
            there.outer = r->sequence >= 0 ? 0 : there.outer;
            if (!same_row(got, there, want, here, r->kv_head * group)) {
                snprintf(sentence, size, "%s of sequence %d, row %d differs", name, (int)b, (int)i);
                return false;
            }
        }
    }
    return true;
}

/* Compares gradients of (batch, head, query, key). */
static bool same_scores(const rewritten *r, const attn_tensor *got, const attn_tensor *want,
                        const char *name, char *sentence, size_t size)
{
    const int64_t group = r->was.hkv > 0 ? r->was.hq / r->was.hkv : 0,
                  b = r->sequence > 0 && want->shape[0] > 1 ? r->sequence : 0,
                  h = want->shape[1] > 1 ? r->kv_head * group : 0;
    const int64_t *n = got->shape;
    for (int64_t at = 0; got->data && at < n[0] * n[1] * n[2] * n[3]; at++) {
        const int64_t i3 = at % n[3], i2 = at / n[3] % n[2], i1 = at / n[3] / n[2] % n[1],
                      i0 = at / n[3] / n[2] / n[1];
        if (!same_number(oracle_element(got, i0, i1, i2, i3),
                         oracle_element(want, b + i0, h + i1, i2, i3))) {
            snprintf(sentence, size, "%s[%d][%d][%d][%d] differs", name, (int)i0, (int)i1, (int)i2,
                     (int)i3);
            return false;
        }
    }
    return true;
}

/* Rows outside of sequences have a dLSE, which goes to a sink. */
static bool rows_outside(const rewritten *r)
{
    return r->grad->d_lse.data && (r->was.has_lens || r->is.has_lens);
}

bool rewrite_same(const rewritten *r, bool gradients, char *sentence, size_t size)
{
    const attn_forward_args *a = r->args, *was = &r->first.args;
    const attn_backward_args *g = r->grad, *grad = &r->first.grad;
    if (!gradients) {
        return same_rows(r, &a->o, &was->o, false, "o", sentence, size) &&
               same_rows(r, &a->o_f32, &was->o, false, "o_f32", sentence, size) &&
               same_rows(r, &a->lse, &was->lse, false, "lse", sentence, size) &&
               same_rows(r, &a->row_max, &was->row_max, false, "row_max", sentence, size);
    }
    return same_rows(r, &g->dq, &grad->dq, false, "dq", sentence, size) &&
           same_rows(r, &g->dk, &grad->dk, true, "dk", sentence, size) &&
           same_rows(r, &g->dv, &grad->dv, true, "dv", sentence, size) &&
           same_scores(r, &g->d_bias, &grad->d_bias, "d_bias", sentence, size) &&
           same_scores(r, &g->d_alibi_slopes, &grad->d_alibi_slopes, "d_alibi_slopes", sentence,
                       size) &&
           (rows_outside(r) ||
            same_scores(r, &g->d_sinks, &grad->d_sinks, "d_sinks", sentence, size));
}
