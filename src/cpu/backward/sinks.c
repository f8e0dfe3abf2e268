/*
 * sinks.c: the gradient of sinks, from lse and delta of all rows alone.
 */
#include "core/half.h"
#include "cpu/backward/backward.h"
#include "cpu/real.h"
#include <math.h>

/* -sum exp(sink - LSE) delta over the rows of one sequence and head. Rows not in use have O = 0,
 * whatever dO holds. */
static double sink_sum(const attn_grad_job *j, int64_t b, int64_t h)
{
    const attn_problem *p = &j->g->p;
    const attn_sequence seq = attn_problem_sequence(p, b);
    const double sink =
        attn_element_to_f64(attn_at_broadcast(&p->sinks, b, h, 0, 0), p->sinks.dtype);
    double sum = 0;
    for (int64_t i = seq.q_first; i < seq.q_first + seq.nq && sink != -INFINITY; i++) {
        double lse = attn_element_to_f64(attn_at(&p->lse, seq.tensor, i, h, 0), p->lse.dtype),
               delta = 0;
        if (i - seq.q_first < seq.nq_used) {
            delta = get_real(j->plan->rows_uk, j->workspace + j->plan->delta,
                             (seq.tensor * p->q.shape[1] + i) * p->heads + h);
        } else if (j->g->d_lse.data) {
            delta =
                -attn_element_to_f64(attn_at(&j->g->d_lse, seq.tensor, i, h, 0), j->g->d_lse.dtype);
        }
        sum -= exp(sink - lse) * delta;
    }
    return sum;
}

/* index: (batch, head) of the shape. */
static void sink_task(const void *job, int64_t index, int32_t thread)
{
    const attn_grad_job *j = job;
    const attn_tensor *out = &j->g->d_sinks;
    const int64_t b = index / out->shape[1], h = index % out->shape[1];
    const bool all_b = out->shape[0] == 1, all_h = out->shape[1] == 1;
    const int64_t sequences = attn_problem_sequences(&j->g->p); /* rows outside of them, too */
    double sum = 0;
    (void)thread;
    for (int64_t bb = all_b ? 0 : b; bb < (all_b ? sequences : b + 1); bb++) {
        for (int64_t hh = all_h ? 0 : h; hh < (all_h ? j->g->p.heads : h + 1); hh++) {
            sum += sink_sum(j, bb, hh);
        }
    }
    attn_element_from_f64(attn_at(out, b, h, 0, 0), out->dtype, sum);
}

void attn_grad_sinks(const attn_grad_plan *plan, const attn_gradients *g,
                     const attn_executor *executor, char *workspace)
{
    const attn_grad_job job = {.plan = plan, .g = g, .workspace = workspace};
    if (g->d_sinks.data) {
        attn_tasks_run(executor, g->d_sinks.shape[0] * g->d_sinks.shape[1], sink_task, &job, NULL);
    }
}
