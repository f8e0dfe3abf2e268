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

static row_place next_place(const attn_problem *problem, row_place r)
{
    const bool last_head = r.h + 1 == problem->heads,
               last_query = last_head && r.i + 1 == problem->q.shape[1];
    return (row_place){r.b + last_query, last_query ? 0 : r.i + last_head, last_head ? 0 : r.h + 1};
}

static const void *row_of(const attn_tensor *tensor, row_place r)
{
    return attn_at(tensor, r.b, r.i, r.h, 0);
}

static void finish_rows(const attn_grad_job *job, row_place place, int64_t first, int64_t n,
                        const char *dots)
{
    const attn_problem *problem = &job->grads->problem;
    const attn_ukernel *table = job->plan->rows_table;
    const attn_tensor *d_lse = &job->grads->d_lse;
    const double unit = job->plan->scores.has_score_step ? 1 : job->plan->scores.scale;
    for (int64_t i = 0; i < n; i++, place = next_place(problem, place)) {
        const double lse = attn_element_to_f64(row_of(&problem->lse, place), problem->lse.dtype);
        const double more =
            d_lse->data ? attn_element_to_f64(row_of(d_lse, place), d_lse->dtype) : 0;
        /* no visible key: whatever S, P = 2^(S - inf) = 0 */
        set_real(table, job->workspace + job->plan->lse_offset, first + i,
                 lse == -INFINITY ? INFINITY : lse / unit);
        set_real(table, job->workspace + job->plan->delta_offset, first + i,
                 get_real(table, dots, i) - more);
    }
}

static void rows_task(const void *arg, int64_t index, int32_t thread)
{
    const attn_grad_job *job = arg;
    const attn_problem *problem = &job->grads->problem;
    const attn_tensor *tensor = &job->grads->d_o;
    const attn_ukernel *table = job->plan->rows_table;
    char *scratch = attn_grad_scratch(job, index, thread);
    char *o = scratch + job->plan->map.row_o, *d_o = scratch + job->plan->map.row_d_o,
         *dots = scratch + job->plan->map.lse;
    for (int64_t strip = index * TASK_STRIPS; strip < (index + 1) * TASK_STRIPS; strip++) {
        const void *o_row[ATTN_MAX_STRIP] = {NULL}, *d_o_row[ATTN_MAX_STRIP] = {NULL};
        const int64_t at = strip * table->strip, n = min64(job->plan->rows - at, table->strip);
        const int64_t queries = problem->q.shape[1], query = at / problem->heads;
        const row_place first = {query / queries, query % queries, at % problem->heads};
        row_place place = first;
        for (int64_t i = 0; i < n; i++, place = next_place(problem, place)) {
            o_row[i] = row_of(&problem->o, place);
            d_o_row[i] = row_of(tensor, place);
        }
        for (int64_t i = at + n; i < min64(at + n + table->strip, job->plan->rows);
             i++, place = next_place(problem, place)) {
            attn_prefetch_row(&(attn_rows){row_of(&problem->o, place),
                                           0,
                                           problem->o.stride[3],
                                           problem->o.dtype,
                                           NULL,
                                           {0}},
                              0, problem->dv);
            attn_prefetch_row(
                &(attn_rows){row_of(tensor, place), 0, tensor->stride[3], tensor->dtype, NULL, {0}},
                0, problem->dv);
        }
        if (n > 0) {
            table->pack_q(o, o_row, problem->o.stride[3], problem->o.dtype, problem->dv, 1,
                          table->strip);
            table->pack_q(d_o, d_o_row, tensor->stride[3], tensor->dtype, problem->dv, 1,
                          table->strip);
            table->grad->dots(dots, o, d_o, problem->dv);
            finish_rows(job, first, at, n, dots);
        }
    }
}

int64_t attn_grad_delta_tasks(const attn_grad_plan *plan)
{
    const int64_t task_rows = (int64_t)TASK_STRIPS * plan->rows_table->strip;
    return (plan->rows + task_rows - 1) / task_rows;
}

void attn_grad_delta(const attn_grad_plan *plan, const attn_gradients *grads,
                     const attn_executor *executor, char *workspace)
{
    const attn_grad_job job = {
        .plan = plan, .grads = grads, .workspace = workspace, .tasks = attn_grad_delta_tasks(plan)};
    attn_tasks_run(executor, job.tasks, rows_task, &job, NULL);
}
