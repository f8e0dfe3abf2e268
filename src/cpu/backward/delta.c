/*
 * delta.c: facts about all rows that the backward pass needs before it begins: lse in units of S,
 * and delta = dO . O - dLSE. A loop of its own over flat rows (b Nq + i) Hq + h, because a row's
 * values are read once for each set of keys and once more by shared_bias.c.
 */
#include "core/half.h"
#include "cpu/backward/backward.h"
#include "cpu/machine/host.h"
#include "cpu/prefetch.h"
#include "cpu/real.h"
#include <math.h>

enum { TASK_STRIPS = 16 };

typedef struct row_place {
    int64_t b, i, h;
} row_place;

static row_place next_place(const attn_problem *p, row_place r)
{
    const bool last_head = r.h + 1 == p->heads, last_query = last_head && r.i + 1 == p->q.shape[1];
    return (row_place){r.b + last_query, last_query ? 0 : r.i + last_head, last_head ? 0 : r.h + 1};
}

static const void *row_of(const attn_tensor *t, row_place r)
{
    return attn_at(t, r.b, r.i, r.h, 0);
}

static void finish_rows(const attn_grad_job *j, row_place place, int64_t first, int64_t n,
                        const char *dots)
{
    const attn_problem *p = &j->g->p;
    const attn_ukernel *uk = j->plan->rows_uk;
    const attn_tensor *d_lse = &j->g->d_lse;
    const double unit = j->plan->scores.step ? 1 : j->plan->scores.scale;
    for (int64_t i = 0; i < n; i++, place = next_place(p, place)) {
        const double lse = attn_element_to_f64(row_of(&p->lse, place), p->lse.dtype);
        const double more =
            d_lse->data ? attn_element_to_f64(row_of(d_lse, place), d_lse->dtype) : 0;
        /* no visible key: whatever S, P = 2^(S - inf) = 0 */
        set_real(uk, j->workspace + j->plan->lse, first + i,
                 lse == -INFINITY ? INFINITY : lse / unit);
        set_real(uk, j->workspace + j->plan->delta, first + i, get_real(uk, dots, i) - more);
    }
}

static void rows_task(const void *job, int64_t index, int32_t thread)
{
    const attn_grad_job *j = job;
    const attn_problem *p = &j->g->p;
    const attn_tensor *t = &j->g->d_o;
    const attn_ukernel *uk = j->plan->rows_uk;
    char *scratch = j->workspace + j->plan->scratch + (uint64_t)thread * j->plan->map.total;
    char *o = scratch + j->plan->map.row_o, *d_o = scratch + j->plan->map.row_d_o,
         *dots = scratch + j->plan->map.lse;
    for (int64_t strip = index * TASK_STRIPS; strip < (index + 1) * TASK_STRIPS; strip++) {
        const void *o_row[ATTN_MAX_STRIP] = {NULL}, *d_o_row[ATTN_MAX_STRIP] = {NULL};
        const int64_t at = strip * uk->strip, n = min64(j->plan->rows - at, uk->strip);
        const int64_t queries = p->q.shape[1], query = at / p->heads;
        const row_place first = {query / queries, query % queries, at % p->heads};
        row_place place = first;
        for (int64_t i = 0; i < n; i++, place = next_place(p, place)) {
            o_row[i] = row_of(&p->o, place);
            d_o_row[i] = row_of(t, place);
        }
        for (int64_t i = at + n; i < min64(at + n + uk->strip, j->plan->rows);
             i++, place = next_place(p, place)) {
            attn_prefetch_row(&(attn_rows){row_of(&p->o, place), 0, p->o.stride[3], p->o.dtype}, 0,
                              p->dv);
            attn_prefetch_row(&(attn_rows){row_of(t, place), 0, t->stride[3], t->dtype}, 0, p->dv);
        }
        if (n > 0) {
            uk->pack_q(o, o_row, p->o.stride[3], p->o.dtype, p->dv, 1, uk->strip);
            uk->pack_q(d_o, d_o_row, t->stride[3], t->dtype, p->dv, 1, uk->strip);
            uk->grad->dots(dots, o, d_o, p->dv);
            finish_rows(j, first, at, n, dots);
        }
    }
}

void attn_grad_delta(const attn_grad_plan *plan, const attn_gradients *g,
                     const attn_executor *executor, char *workspace)
{
    const attn_grad_job job = {.plan = plan, .g = g, .workspace = workspace};
    const int64_t task_rows = (int64_t)TASK_STRIPS * plan->rows_uk->strip;
    attn_tasks_run(executor, (plan->rows + task_rows - 1) / task_rows, rows_task, &job, NULL);
}
