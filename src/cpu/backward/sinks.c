/*
 * sinks.c: the gradient of sinks, from lse and delta of all rows alone.
 */
#include "core/half.h"
#include "cpu/backward/backward.h"
#include "cpu/real.h"
#include <math.h>

/* -sum exp(sink - LSE) delta over the rows of one sequence and head. Rows not in use have O = 0,
 * whatever dO holds. */
static double sink_sum(const attn_grad_job *job, int64_t b, int64_t h)
{
    const attn_problem *problem = &job->grads->problem;
    const attn_sequence seq = attn_problem_sequence(problem, b);
    const double sink =
        attn_element_to_f64(attn_at_broadcast(&problem->sinks, b, h, 0, 0), problem->sinks.dtype);
    double sum = 0;
    for (int64_t i = seq.q_first; i < seq.q_first + seq.nq && sink != -INFINITY; i++) {
        double lse = attn_element_to_f64(attn_at(&problem->lse, seq.tensor, i, h, 0),
                                         problem->lse.dtype),
               delta = 0;
        if (i - seq.q_first < seq.nq_used) {
            delta = get_real(job->plan->rows_table, job->workspace + job->plan->delta_offset,
                             (seq.tensor * problem->q.shape[1] + i) * problem->heads + h);
        } else if (job->grads->d_lse.data) {
            delta = -attn_element_to_f64(attn_at(&job->grads->d_lse, seq.tensor, i, h, 0),
                                         job->grads->d_lse.dtype);
        }
        sum -= exp(sink - lse) * delta;
    }
    return sum;
}

/* index: (batch, head) of the shape. */
static void sink_task(const void *arg, int64_t index, int32_t thread)
{
    const attn_grad_job *job = arg;
    const attn_tensor *out = &job->grads->d_sinks;
    const int64_t b = index / out->shape[1], h = index % out->shape[1];
    const bool all_b = out->shape[0] == 1, all_h = out->shape[1] == 1;
    const int64_t sequences =
        attn_problem_sequences(&job->grads->problem); /* rows outside of them, too */
    double sum = 0;
    (void)thread;
    for (int64_t bb = all_b ? 0 : b; bb < (all_b ? sequences : b + 1); bb++) {
        for (int64_t hh = all_h ? 0 : h; hh < (all_h ? job->grads->problem.heads : h + 1); hh++) {
            sum += sink_sum(job, bb, hh);
        }
    }
    attn_element_from_f64(attn_at(out, b, h, 0, 0), out->dtype, sum);
}

void attn_grad_sinks(const attn_grad_plan *plan, const attn_gradients *grads,
                     const attn_executor *executor, char *workspace)
{
    const attn_grad_job job = {.plan = plan, .grads = grads, .workspace = workspace};
    if (grads->d_sinks.data) {
        attn_tasks_run(executor, grads->d_sinks.shape[0] * grads->d_sinks.shape[1], sink_task, &job,
                       NULL);
    }
}
