/*
 * bias.c: see bias.h. Everything is in double precision and in an order that depends on
 * the problem only: a key's sum has `chains` chains, row r of the KV head's rows is added to chain
 * r % chains, rows upwards; then the chains of a head are added up, then keys, heads and sequences
 * that share an element.
 */
#include "cpu/backward/bias.h"
#include "core/half.h"
#include "core/kv.h"
#include "cpu/machine/tasks.h"
#include <math.h>
#include <string.h>

/* ---- an element for each score --------------------------------------------------------------- */

static void store_tile(const attn_grad_item *item, int strip_index, attn_interval keys)
{
    const attn_tensor *out = &item->grads->d_bias;
    const int lanes = attn_grad_lanes(item, strip_index);
    void *rows[ATTN_MAX_STRIP];
    lane_row row =
        attn_score_row(&item->scores, item->first_row + (int64_t)strip_index * item->table->strip);
    for (int lane = 0; lane < lanes; lane++, row = attn_score_next(&item->scores, row)) {
        rows[lane] = attn_at(out, item->seq.index, row.head, row.query, keys.lo);
    }
    item->table->store(rows, out->stride[3], out->dtype, item->plain, keys.hi - keys.lo, NULL,
                       lanes);
}

void attn_grad_bias_clear(const attn_grad_item *item, attn_interval rows, attn_interval keys)
{
    const attn_tensor *out = &item->grads->d_bias;
    const int64_t size = (int64_t)attn_dtype_size(out->dtype),
                  together = out->stride[3] == 1 ? keys.hi - keys.lo : 1;
    for (int64_t i = rows.lo; i < rows.hi && item->plan->whole_bias; i++) {
        const lane_row row = attn_score_row(&item->scores, i);
        for (int64_t key = keys.lo; key < keys.hi; key += together) {
            memset(attn_at(out, item->seq.index, row.head, row.query, key), 0,
                   (size_t)(together * size));
        }
    }
}

/* ---- sums over queries ----------------------------------------------------------------------- */

/* Chains of a sum: [keys][chains] in the scratch. */
static double *chains_of(const attn_grad_item *item, int sum, int64_t key)
{
    return item->key_sums + (sum * item->plan->keys + key) * item->plan->chains;
}

void attn_grad_bias_begin(attn_grad_item *item)
{
    memset(item->key_sums, 0,
           (size_t)(item->plan->key_sums * item->plan->keys * item->plan->chains) * sizeof(double));
}

/* Rows from one of chain `at` on. */
static void add_row(double *chain, int64_t chains, int64_t at, const double *value, int lanes)
{
    int lane = 0;
    for (; chains == 4 && at == 0 && lane + 4 <= lanes; lane += 4) { /* in vectors */
        for (int i = 0; i < 4; i++) {
            chain[i] += value[lane + i];
        }
    }
    for (; lane < lanes; lane++) {
        chain[at] += value[lane];
        at = at + 1 < chains ? at + 1 : 0;
    }
}

static void add_tile(attn_grad_item *item, int sum, int strip_index, attn_interval keys)
{
    const int lanes = attn_grad_lanes(item, strip_index);
    const int64_t first = item->first_row + (int64_t)strip_index * item->table->strip,
                  chains = item->plan->chains;
    const char *ds = item->plain;
    double value[ATTN_MAX_STRIP], diagonal[ATTN_MAX_STRIP];
    lane_row row = attn_score_row(&item->scores, first);
    for (int lane = 0; lane < lanes; lane++, row = attn_score_next(&item->scores, row)) {
        diagonal[lane] = (double)(row.query + item->seq.diagonal);
    }
    for (int64_t key = keys.lo; key < keys.hi;
         key++, ds += item->table->strip * item->table->real_size) {
        get_reals(item->table, value, ds, lanes);
        for (int lane = 0; item->plan->key_sum[sum].slopes && lane < lanes; lane++) {
            value[lane] *= -fabs(diagonal[lane] - (double)key);
        }
        add_row(chains_of(item, sum, key - item->first_key), chains, first % chains, value, lanes);
    }
}

void attn_grad_bias_tile(attn_grad_item *item, int strip_index, attn_interval keys)
{
    if (item->plan->whole_bias) {
        store_tile(item, strip_index, keys);
    }
    for (int sum = 0; sum < item->plan->key_sums; sum++) {
        add_tile(item, sum, strip_index, keys);
    }
}

/* Sums of a head: one for each key of the tensor, sequences side by side. */
static double *partial_of(const attn_problem *problem, double *partial, int sum,
                          const attn_sequence *seq, int64_t head)
{
    const int64_t at = (sum * problem->q.shape[0] + seq->tensor) * problem->heads + head;
    return partial + at * problem->k.shape[1] + attn_kv_row(seq, 0);
}

void attn_grad_bias_end(attn_grad_item *item, int64_t first, int64_t last)
{
    const int64_t group = item->problem->group, chains = item->plan->chains;
    for (int sum = 0; sum < item->plan->key_sums; sum++) {
        for (int64_t head = 0; head < group; head++) {
            double *to = partial_of(item->problem, item->partial, sum, &item->seq,
                                    item->kv_head * group + head);
            for (int64_t key = first; key < last; key++) {
                const double *chain = chains_of(item, sum, key - first);
                to[key] = chain[head];
                for (int64_t i = head + group; i < chains; i += group) {
                    to[key] += chain[i];
                }
            }
        }
    }
}

/* ---- elements that heads, keys and sequences share ------------------------------------------- */

/* Sums over keys first .. last-1 of the sequences and heads of an element (b, h). */
static double shared_sum(const attn_grad_job *job, int64_t b, int64_t h, int64_t first,
                         int64_t last)
{
    const attn_problem *problem = &job->grads->problem;
    const attn_tensor *out = &job->plan->key_sum[job->part].out;
    const bool all_b = out->shape[0] == 1, all_h = out->shape[1] == 1;
    double *partial = (double *)(void *)(job->workspace + job->plan->partial_offset);
    double sum = 0;
    for (int64_t bb = all_b ? 0 : b; bb < (all_b ? problem->batch : b + 1); bb++) {
        const attn_sequence seq = attn_problem_sequence(problem, bb);
        for (int64_t hh = all_h ? 0 : h; hh < (all_h ? problem->heads : h + 1); hh++) {
            const double *from = partial_of(problem, partial, job->part, &seq, hh);
            for (int64_t key = first; key < min64(last, seq.k_rows); key++) {
                sum += from[key];
            }
        }
    }
    return sum;
}

/* index: (batch, head) of the shape. */
static void shared_task(const void *arg, int64_t index, int32_t thread)
{
    const attn_grad_job *job = arg;
    const attn_tensor *out = &job->plan->key_sum[job->part].out;
    const int64_t b = index / out->shape[1], h = index % out->shape[1];
    (void)thread;
    for (int64_t key = 0; key < out->shape[3]; key++) {
        double sum = shared_sum(job, b, h, key, out->shape[3] == 1 ? INT64_MAX : key + 1);
        attn_element_from_f64(attn_at(out, b, h, 0, key), out->dtype, sum);
    }
}

void attn_grad_bias_finish(const attn_grad_plan *plan, const attn_gradients *grads,
                           const attn_executor *executor, char *workspace)
{
    attn_grad_job job = {.plan = plan, .grads = grads, .workspace = workspace};
    for (; job.part < plan->key_sums; job.part++) {
        const attn_tensor *out = &plan->key_sum[job.part].out;
        attn_tasks_run(executor, out->shape[0] * out->shape[1], shared_task, &job, NULL);
    }
}
