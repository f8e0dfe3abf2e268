/*
 * append.c: see append.h. Few rows, element by element; a pair's angle is computed once for all
 * heads.
 */
#include "cpu/append.h"
#include "core/half.h"
#include "core/kv.h"
#include "cpu/machine/tasks.h"
#include "cpu/real.h"
#include <math.h>
#include <string.h>

enum { ROWS = 16 }; /* of an item */

typedef struct append_job {
    const attn_problem *problem;
    attn_tensor rotated; /* Q; no data: as it is */
    int64_t blocks;      /* of a sequence */
} append_job;

bool attn_rotated_bytes(const attn_problem *problem, uint64_t *bytes)
{
    const int64_t *n = problem->q.shape;
    *bytes = problem->rope.dims > 0 ? (uint64_t)attn_element_size(problem->q.dtype) : 0;
    bool fits = true;
    for (int a = 0; a < 4; a++) {
        fits = fits && !__builtin_mul_overflow(*bytes, (uint64_t)n[a], bytes);
    }
    return fits;
}

/* A row of one head, from and to any strides. */
typedef struct row_copy {
    const char *from;
    char *to;
    int64_t from_step, to_step; /* bytes from column to column */
    int64_t cols;
    int32_t dtype;
} row_copy;

static void copy_columns(const row_copy *row, int64_t first)
{
    const size_t size = (size_t)attn_element_size(row->dtype);
    for (int64_t c = first; c < row->cols; c++) {
        memcpy(row->to + c * row->to_step, row->from + c * row->from_step, size);
    }
}

static void rotate(const row_copy *row, int64_t x_col, int64_t y_col, double cosine, double sine)
{
    const double x = attn_element_to_f64(row->from + x_col * row->from_step, row->dtype),
                 y = attn_element_to_f64(row->from + y_col * row->from_step, row->dtype);
    attn_element_from_f64(row->to + x_col * row->to_step, row->dtype, x * cosine - y * sine);
    attn_element_from_f64(row->to + y_col * row->to_step, row->dtype, x * sine + y * cosine);
}

static void find_angle(const attn_rope *rope, int64_t position, int64_t pair, double *cosine,
                       double *sine)
{
    if (attn_tensor_present(&rope->cos)) {
        *cosine = attn_element_to_f64(attn_at(&rope->cos, position, pair, 0, 0), rope->cos.dtype);
        *sine = attn_element_to_f64(attn_at(&rope->sin, position, pair, 0, 0), rope->sin.dtype);
    } else {
        const double exponent = -2 * (double)pair / (double)rope->dims;
        const double angle = (double)position * pow(rope->base, exponent);
        *cosine = cos(angle), *sine = sin(angle);
    }
}

static row_copy copy_of(const attn_tensor *from, const attn_sequence *sequence, int64_t row,
                        int64_t head, char *to, int64_t to_stride)
{
    const int64_t size = attn_element_size(from->dtype);
    const int64_t index = sequence->q_first + row;
    return (row_copy){attn_at(from, sequence->tensor, index, head, 0),
                      to,
                      from->stride[3] * size,
                      to_stride * size,
                      from->shape[3],
                      from->dtype};
}

static row_copy query_row(const append_job *job, const attn_sequence *sequence, int64_t row,
                          int64_t head)
{
    const attn_tensor *to = &job->rotated;
    return copy_of(&job->problem->q, sequence, row, head,
                   attn_at(to, sequence->tensor, sequence->q_first + row, head, 0), 1);
}

/* A new row of K or V to its place in the cache. */
static row_copy cache_row(const append_job *job, const attn_tensor *from, const attn_tensor *cache,
                          const attn_sequence *sequence, int64_t row, int64_t head)
{
    const int64_t key = sequence->nk - sequence->nq_used + row;
    return copy_of(from, sequence, row, head,
                   attn_kv_find(job->problem, cache, sequence, head, key, 0), cache->stride[3]);
}

/* Rotates a row of all heads of Q and K. */
static void rotate_row(const append_job *job, const attn_sequence *sequence, int64_t row)
{
    const attn_problem *problem = job->problem;
    const attn_rope *rope = &problem->rope;
    const int64_t half = rope->dims / 2, position = attn_first_position(problem, sequence) + row;
    const int64_t kv_heads = attn_tensor_present(&problem->k_new) ? problem->kv_heads : 0;
    for (int64_t pair = 0; pair < half; pair++) {
        const int64_t x = rope->interleaved ? 2 * pair : pair,
                      y = rope->interleaved ? x + 1 : pair + half;
        double cosine, sine;
        find_angle(rope, position, pair, &cosine, &sine);
        for (int64_t head = 0; head < problem->heads; head++) {
            const row_copy copy = query_row(job, sequence, row, head);
            rotate(&copy, x, y, cosine, sine);
        }
        for (int64_t head = 0; head < kv_heads; head++) {
            const row_copy copy = cache_row(job, &problem->k_new, &problem->k, sequence, row, head);
            rotate(&copy, x, y, cosine, sine);
        }
    }
}

static void append_row(const append_job *job, const attn_sequence *sequence, int64_t row)
{
    const attn_problem *problem = job->problem;
    const int64_t dims = problem->rope.dims;
    if (dims > 0) {
        rotate_row(job, sequence, row);
    }
    for (int64_t head = 0; dims > 0 && head < problem->heads; head++) {
        const row_copy copy = query_row(job, sequence, row, head);
        copy_columns(&copy, dims);
    }
    for (int64_t head = 0; head < problem->kv_heads; head++) {
        if (attn_tensor_present(&problem->k_new)) {
            const row_copy copy = cache_row(job, &problem->k_new, &problem->k, sequence, row, head);
            copy_columns(&copy, dims);
        }
        if (attn_tensor_present(&problem->v_new)) {
            const row_copy copy = cache_row(job, &problem->v_new, &problem->v, sequence, row, head);
            copy_columns(&copy, 0);
        }
    }
}

static void task(const void *arg, int64_t index, int32_t thread)
{
    const append_job *job = arg;
    const attn_sequence sequence = attn_problem_sequence(job->problem, index / job->blocks);
    const int64_t first = index % job->blocks * ROWS, last = min64(first + ROWS, sequence.nq_used);
    (void)thread;
    for (int64_t row = first; row < last; row++) {
        append_row(job, &sequence, row);
    }
}

attn_problem attn_cpu_append(const attn_problem *problem, const attn_executor *executor,
                             void *rotated)
{
    append_job job = {.problem = problem};
    attn_problem after = *problem;
    int64_t longest = 0;
    for (int64_t b = 0; b < problem->batch; b++) {
        longest = max64(longest, attn_problem_lengths(problem, b).nq_used);
    }
    if (problem->rope.dims > 0) {
        const int64_t *n = problem->q.shape;
        job.rotated =
            attn_tensor_bshd(rotated, (attn_dtype)problem->q.dtype, n[0], n[1], n[2], n[3]);
        after.q = job.rotated;
    }
    job.blocks = round_up(longest, ROWS) / ROWS;
    if (attn_tensor_present(&problem->k_new) || attn_tensor_present(&problem->v_new) ||
        problem->rope.dims > 0) {
        attn_tasks_run(executor, problem->batch * job.blocks, task, &job, NULL);
    }
    return after;
}
