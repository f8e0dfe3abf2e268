/*
 * brief.c: see brief.h. The time of such a call is that of its steps beside the products, so they
 * are taken once for all heads.
 */
#include "cpu/forward/brief.h"
#include "cpu/machine/host.h"
#include "cpu/machine/tasks.h"
#include "cpu/real.h"
#include <math.h>

enum {
    MOST_ROWS = 64, /* more take threads */
    ROW_GROUP = 4   /* lanes that pack_q may write alone */
};

/* ---- which calls ----------------------------------------------------------------------------- */

/* True for tensors of one type whose columns lie side by side. */
static bool are_alike(const attn_problem *problem)
{
    const attn_tensor *tensors[] = {&problem->q, &problem->k, &problem->v, &problem->o};
    bool alike = true;
    for (int i = 0; i < 4; i++) {
        alike &= tensors[i]->stride[3] == 1 && tensors[i]->dtype == problem->q.dtype;
    }
    return alike;
}

/* True where a head has as many keys as rows, so that those of all heads fill the lanes. */
static bool keys_fill_lanes(const attn_ukernel *table, const attn_problem *problem)
{
    return table->side_qk && (problem->keys == 2 || problem->keys == 4) &&
           problem->keys == problem->q.shape[1] * problem->group;
}

/* True where one pass over all heads takes less time than an item for each head. A pass takes a
 * step for each key and each vector of lanes, whichever heads these belong to; the items of the
 * heads take a step for each head. */
static bool is_short(const attn_cpu_plan *plan, const attn_problem *problem)
{
    const attn_ukernel *table = plan->table;
    const int64_t lanes = table->vector_bits / 8 / table->real_size,
                  rows = problem->batch * problem->q.shape[1] * problem->heads,
                  vectors = (rows + lanes - 1) / lanes, keys = problem->keys;
    return rows > 0 && rows <= MOST_ROWS && keys > 0 && keys <= ATTN_BRIEF_KEYS &&
           problem->q.shape[1] * problem->group <= table->strip &&
           keys * vectors <= (plan->side ? 2 : 1) * problem->batch * problem->kv_heads;
}

/* True for a call of few rows, which all see all of a few keys. */
static bool is_brief(const attn_cpu_plan *plan, const attn_problem *problem)
{
    const attn_ukernel *table = plan->table;
    const bool all_seen = problem->window_left == ATTN_UNBOUNDED &&
                          (problem->window_right == ATTN_UNBOUNDED ||
                           (problem->q.shape[1] == 1 && !problem->top_left)),
               plain = !plan->scores.has_score_step && plan->scores.factor == 1 &&
                       !problem->dropout.on && !problem->sinks.data,
               results = problem->lse.data || problem->row_max.data || problem->o_f32.data,
               apart = problem->paged || attn_tensor_present(&problem->k_new) ||
                       attn_tensor_present(&problem->v_new) || problem->rope.dims > 0;
    return table->own_qk && problem->d > 0 && all_seen && plain && !results && !apart &&
           attn_problem_is_whole(problem) && is_short(plan, problem) && are_alike(problem) &&
           table->takes_rows(problem->v.dtype, problem->dv);
}

void attn_brief_plan(attn_cpu_plan *plan, const attn_problem *problem)
{
    plan->side = keys_fill_lanes(plan->table, problem);
    plan->brief = is_brief(plan, problem);
}

/* ---- the pass -------------------------------------------------------------------------------- */

/* Rows of each lane. */
typedef struct lane_rows {
    const void *q[ATTN_MAX_STRIP];
    bool side;                          /* the keys of the lanes' heads are listed once .. */
    const void *each_k[ATTN_MAX_STRIP]; /* .. here */
    const void *k[ATTN_BRIEF_KEYS][ATTN_MAX_STRIP]; /* else for each lane */
    const char *v[ATTN_BRIEF_KEYS][ATTN_MAX_STRIP];
    void *o[ATTN_MAX_STRIP];
    int lanes;
} lane_rows;

/* Bytes from row to row and from head to head: a row's address takes an addition. */
typedef struct row_steps {
    int64_t row, head;
} row_steps;

static row_steps steps_of(const attn_tensor *tensor)
{
    return (row_steps){attn_axis_step(tensor, 1), attn_axis_step(tensor, 2)};
}

typedef struct call_steps {
    row_steps q, k, v, o;
} call_steps;

static call_steps all_steps(const attn_problem *problem)
{
    return (call_steps){steps_of(&problem->q), steps_of(&problem->k), steps_of(&problem->v),
                        steps_of(&problem->o)};
}

/* Lists the rows of the queries of KV head number `at`, counted over the batch. */
static void list_group(lane_rows *rows, const attn_problem *problem, const call_steps *steps,
                       int64_t at, bool side)
{
    const int64_t b = at / problem->kv_heads, kv_head = at % problem->kv_heads,
                  group = problem->group;
    const char *k = attn_at(&problem->k, b, 0, kv_head, 0),
               *v = attn_at(&problem->v, b, 0, kv_head, 0);
    char *q = attn_at(&problem->q, b, 0, kv_head * group, 0),
         *o = attn_at(&problem->o, b, 0, kv_head * group, 0);
    const int begin = rows->lanes;
    for (int64_t i = 0; i < problem->q.shape[1]; i++) {
        for (int64_t head = 0; head < group; head++, rows->lanes++) {
            rows->q[rows->lanes] = q + i * steps->q.row + head * steps->q.head;
            rows->o[rows->lanes] = o + i * steps->o.row + head * steps->o.head;
        }
    }
    for (int64_t key = 0; key < problem->keys; key++, k += steps->k.row, v += steps->v.row) {
        for (int lane = begin; lane < rows->lanes; lane++) {
            rows->v[key][lane] = v;
        }
        for (int lane = begin; lane < rows->lanes && !side; lane++) {
            rows->k[key][lane] = k;
        }
        if (side) {
            rows->each_k[begin + key] = k;
        }
    }
}

/* Lists the rows of KV heads from number `first` on, counted over the batch, as many as a strip
 * holds. Returns the number of the next one. */
static int64_t list_rows(lane_rows *rows, const attn_cpu_plan *plan, const attn_problem *problem,
                         const call_steps *steps, int64_t first)
{
    const int64_t all = problem->batch * problem->kv_heads,
                  each = problem->q.shape[1] * problem->group, most = plan->table->strip / each,
                  end = all - first < most ? all : first + most;
    rows->lanes = 0;
    rows->side = plan->side && (end - first) * each > ROW_GROUP;
    for (int64_t head = first; head < end; head++) {
        list_group(rows, problem, steps, head, rows->side);
    }
    const int lanes = plan->table->vector_bits / 8 / plan->table->real_size,
              end_lane = (rows->lanes + lanes - 1) / lanes * lanes; /* which pack_q reads */
    for (int lane = rows->lanes; lane < end_lane; lane++) {
        rows->q[lane] = rows->each_k[lane] = NULL;
        for (int64_t key = 0; key < problem->keys && !rows->side; key++) {
            rows->k[key][lane] = NULL;
        }
    }
    return end;
}

typedef struct brief_job {
    const attn_cpu_plan *plan;
    const attn_problem *problem;
    char *scratch;
    bool *finite;
} brief_job;

/* True where each lane sees a single key with a finite score: its probability is 1. */
static bool are_certain(const brief_job *job, const lane_rows *rows)
{
    const attn_problem *problem = job->problem;
    const attn_ukernel *table = job->plan->table;
    const int32_t dtype = problem->k.dtype;
    const int64_t d = problem->d;
    return problem->keys == 1 && table->own_fits && table->takes_rows(dtype, d) &&
           table->own_fits(rows->q, rows->k[0], dtype, d, rows->lanes);
}

/* Scores and probabilities of all lanes; their sums are at state->l. Returns the probabilities, or
 * NULL for pairs of numbers that are 1. */
static const void *run_scores(const brief_job *job, const lane_rows *rows,
                              const attn_running *state)
{
    const attn_problem *problem = job->problem;
    const attn_ukernel *table = job->plan->table;
    const attn_scratch_map *map = &job->plan->scratch;
    const int64_t d = problem->d, keys = problem->keys;
    char *qt = job->scratch + map->strips, *kt = job->scratch + map->k, *s = job->scratch + map->s,
         *p = job->scratch + map->p;
    if (are_certain(job, rows)) {
        fill_reals(table, state->l, table->strip, 1);
        if (table->p_bytes() > 0) {
            return NULL;
        }
        fill_reals(table, p, table->strip, 1);
        return p;
    }
    table->pack_q(qt, rows->q, 1, problem->q.dtype, d, 1, rows->lanes);
    if (rows->side) {
        table->pack_q(kt, rows->each_k, 1, problem->k.dtype, d, 1, rows->lanes);
        table->side_qk(s, kt, qt, d, (int)keys, rows->lanes);
    }
    for (int64_t key = 0; key < keys && !rows->side; key++) {
        table->pack_q(kt, rows->k[key], 1, problem->k.dtype, d, 1, rows->lanes);
        table->own_qk(s + key * table->strip * table->real_size, kt, qt, d, rows->lanes);
    }
    fill_reals(table, state->m, table->strip, -INFINITY);
    fill_reals(table, state->l, table->strip, 0);
    table->softmax(p, 0, s, keys, job->plan->scores.exponent, state, rows->lanes);
    return p;
}

/* Runs the rows listed. False if a sum is not finite. */
static bool run_rows(const brief_job *job, const lane_rows *rows)
{
    const attn_problem *problem = job->problem;
    const attn_ukernel *table = job->plan->table;
    const attn_scratch_map *map = &job->plan->scratch;
    const int64_t lanes = table->strip * table->real_size;
    char *m = job->scratch + map->strips + map->strip_state;
    const attn_running state = {
        .m = m, .l = m + lanes, .alpha = m + 2 * lanes, .top = table->lags ? NULL : m};
    if (table->flushes) {
        attn_host_flush(true);
    }
    const void *p = run_scores(job, rows, &state);
    if (table->flushes) {
        attn_host_flush(false);
    }
    const attn_own own = {.v = rows->v[0],
                          .o = rows->o,
                          .n = problem->keys,
                          .dv = problem->dv,
                          .dtype = problem->v.dtype,
                          .o_dtype = problem->o.dtype,
                          .lanes = rows->lanes};
    return table->own_pv(&own, p, state.l);
}

static void brief_task(const void *arg, int64_t index, int32_t thread)
{
    const brief_job *job = arg;
    const attn_problem *problem = job->problem;
    const int64_t heads = problem->batch * problem->kv_heads;
    const call_steps steps = all_steps(problem);
    lane_rows rows;
    (void)index, (void)thread;
    for (int64_t head = 0; head < heads && *job->finite;) {
        head = list_rows(&rows, job->plan, problem, &steps, head);
        *job->finite = run_rows(job, &rows);
    }
}

bool attn_brief_run(const attn_cpu_plan *plan, const attn_problem *problem,
                    const attn_executor *executor, char *scratch)
{
    bool finite = true;
    const brief_job job = {plan, problem, scratch, &finite};
    attn_tasks_run(executor, 1, brief_task, &job, plan->table);
    return finite;
}
