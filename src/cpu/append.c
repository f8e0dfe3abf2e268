/*
 * append.c: see append.h. The angle of a pair of columns is computed once for all heads of a row,
 * whose elements are handled one by one.
 */
#include "cpu/append.h"
#include "core/append.h"
#include "core/codes.h"
#include "core/kv.h"
#include "cpu/machine/tasks.h"
#include "cpu/encode.h"
#include "cpu/real.h"
#include <math.h>
#include <string.h>

enum {
    ROWS = 16, /* of an item */
    PAIRS = 64 /* of columns, whose angles are at hand */
};

typedef struct append_job {
    const attn_problem *problem;
    attn_rotated rotated;
    int64_t blocks; /* of a sequence */
} append_job;

/* A copy of one head's row between any strides. */
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
    if (row->from_step == (int64_t)size && row->to_step == (int64_t)size) {
        memcpy(row->to + first * row->to_step, row->from + first * row->from_step,
               (size_t)(row->cols - first) * size);
        return;
    }
    for (int64_t c = first; c < row->cols; c++) {
        memcpy(row->to + c * row->to_step, row->from + c * row->from_step, size);
    }
}

/* Angles of pairs first .. first + n - 1. */
typedef struct pair_angles {
    int64_t first, n;
    double cosine[PAIRS], sine[PAIRS];
} pair_angles;

/* dtype: a constant where it is called. */
ATTN_INLINE void rotate_type(const row_copy *row, const attn_rope *rope, const pair_angles *by,
                             int32_t dtype)
{
    const int64_t step = rope->interleaved ? 2 : 1, apart = rope->interleaved ? 1 : rope->dims / 2,
                  from_y = apart * row->from_step, to_y = apart * row->to_step;
    const char *from = row->from + by->first * step * row->from_step;
    char *to = row->to + by->first * step * row->to_step;
    for (int64_t i = 0; i < by->n; i++) {
        const double x = attn_element_to_f64(from, dtype),
                     y = attn_element_to_f64(from + from_y, dtype);
        attn_element_from_f64(to, dtype, x * by->cosine[i] - y * by->sine[i]);
        attn_element_from_f64(to + to_y, dtype, x * by->sine[i] + y * by->cosine[i]);
        from += step * row->from_step, to += step * row->to_step;
    }
}

static void rotate(const row_copy *row, const attn_rope *rope, const pair_angles *by)
{
    switch (row->dtype) {
    case ATTN_F64:
        rotate_type(row, rope, by, ATTN_F64);
        break;
    case ATTN_F32:
        rotate_type(row, rope, by, ATTN_F32);
        break;
    case ATTN_F16:
        rotate_type(row, rope, by, ATTN_F16);
        break;
    default:
        rotate_type(row, rope, by, ATTN_BF16);
        break;
    }
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

/* Copies a row to a place in another tensor of its type. */
static row_copy copy_of(const attn_tensor *from, const attn_sequence *sequence, int64_t row,
                        int64_t head, const attn_tensor *to, char *place)
{
    const int64_t index = sequence->q_first + row;
    return (row_copy){attn_at(from, sequence->tensor, index, head, 0),
                      place,
                      attn_axis_step(from, 3),
                      attn_axis_step(to, 3),
                      from->shape[3],
                      from->dtype};
}

/* Copies a row to its place in a tensor of equal shape. */
static row_copy row_to(const attn_tensor *from, const attn_tensor *to,
                       const attn_sequence *sequence, int64_t row, int64_t head)
{
    return copy_of(from, sequence, row, head, to,
                   attn_at(to, sequence->tensor, sequence->q_first + row, head, 0));
}

/* Rotates a row of all heads of Q and of new keys, and copies its other columns. */
static void rotate_row(const append_job *job, const attn_sequence *sequence, int64_t row)
{
    const attn_problem *problem = job->problem;
    const attn_rope *rope = &problem->rope;
    const int64_t half = rope->dims / 2, position = attn_first_position(problem, sequence) + row;
    const int64_t new_heads = attn_tensor_present(&problem->k_new) ? problem->kv_heads : 0;
    for (pair_angles by = {.first = 0}; by.first < half; by.first += PAIRS) {
        by.n = min64(half - by.first, PAIRS);
        for (int64_t i = 0; i < by.n; i++) {
            find_angle(rope, position, by.first + i, &by.cosine[i], &by.sine[i]);
        }
        for (int64_t head = 0; head < problem->heads + new_heads; head++) {
            const bool query = head < problem->heads;
            const row_copy copy = query ? row_to(&problem->q, &job->rotated.q, sequence, row, head)
                                        : row_to(&problem->k_new, &job->rotated.k, sequence, row,
                                                 head - problem->heads);
            rotate(&copy, rope, &by);
        }
    }
    for (int64_t head = 0; head < problem->heads; head++) {
        const row_copy copy = row_to(&problem->q, &job->rotated.q, sequence, row, head);
        copy_columns(&copy, rope->dims);
    }
    for (int64_t head = 0; head < new_heads; head++) {
        const row_copy copy = row_to(&problem->k_new, &job->rotated.k, sequence, row, head);
        copy_columns(&copy, rope->dims);
    }
}

/* One row of a tensor, whose first element is at `data`. */
static attn_tensor row_of(const attn_tensor *tensor, char *data)
{
    attn_tensor row = *tensor;
    row.data = data, row.shape[0] = row.shape[1] = 1;
    return row;
}

/* Stores a new row of K or V, of all heads, in the cache. */
static void store_row(const append_job *job, const attn_tensor *from, const attn_tensor *cache,
                      const attn_codes *codes, const attn_sequence *sequence, int64_t row)
{
    const attn_problem *problem = job->problem;
    const int64_t key = sequence->nk - sequence->nq_used + row;
    if (!attn_is_code(cache->dtype)) {
        for (int64_t head = 0; head < problem->kv_heads; head++) {
            char *to = attn_kv_find(problem, cache, sequence, head, key, 0);
            const row_copy copy = copy_of(from, sequence, row, head, cache, to);
            copy_columns(&copy, 0);
        }
        return;
    }
    attn_quantized t = {.given = !attn_codes_own_scales(codes->scale, cache)};
    t.x = row_of(from, attn_at(from, sequence->tensor, sequence->q_first + row, 0, 0));
    t.codes = row_of(cache, attn_kv_find(problem, cache, sequence, 0, key, 0));
    if (attn_tensor_present(codes->scale)) {
        t.scale = row_of(codes->scale, attn_kv_factor(problem, codes->scale, sequence, 0, key));
    }
    if (attn_tensor_present(codes->shift)) {
        t.shift = row_of(codes->shift, attn_kv_factor(problem, codes->shift, sequence, 0, key));
    }
    const int64_t heads = attn_tensor_present(codes->scale) ? codes->scale->shape[2] : 1;
    for (int64_t head = 0; head < heads && problem->kv_heads > 0; head++) {
        attn_encode(&t, (const int64_t[3]){0, 0, head});
    }
}

static void append_row(const append_job *job, const attn_sequence *sequence, int64_t row)
{
    const attn_problem *problem = job->problem;
    if (problem->rope.dims > 0) {
        rotate_row(job, sequence, row);
    }
    if (attn_tensor_present(&problem->k_new)) {
        const attn_tensor *from = job->rotated.k.data ? &job->rotated.k : &problem->k_new;
        store_row(job, from, &problem->k, &problem->k_codes, sequence, row);
    }
    if (attn_tensor_present(&problem->v_new)) {
        store_row(job, &problem->v_new, &problem->v, &problem->v_codes, sequence, row);
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
        (void)attn_rotated_place(problem, rotated, &job.rotated); /* the plan found that it fits */
        after.q = job.rotated.q;
    }
    job.blocks = round_up(longest, ROWS) / ROWS;
    attn_tasks_run(executor, problem->batch * job.blocks, task, &job, NULL);
    return after;
}
