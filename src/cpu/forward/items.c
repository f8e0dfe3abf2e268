/*
 * items.c: the items of the forward pass on threads: whole ones; in pieces of their keys, where
 * there are few; and behind keys that sequences share (shared.h). Not here: the computation of an
 * item (forward.c), the cut into items (core/schedule.h), threads (executor).
 */
#include "cpu/forward/brief.h"
#include "cpu/forward/forward.h"
#include "cpu/forward/nodes.h"
#include "cpu/forward/shared.h"
#include "cpu/machine/tasks.h"

static void leave_all(attn_forward_item *item)
{
    for (int i = 0; i < item->strips; i++) {
        attn_strip_leave(item, i);
    }
}

/* ---- an item in pieces ----------------------------------------------------------------------- */

static int64_t piece_keys(const attn_forward_item *item)
{
    return item->plan->pieces.segments * item->table->segment;
}

static attn_piece *piece_at(const attn_forward_item *item, char *first_piece, int64_t i)
{
    return (attn_piece *)(void *)(first_piece + (uint64_t)i * item->plan->pieces.bytes);
}

/* Sums keys of the item into pieces, one for each strip, side by side. */
static void run_pieces(attn_forward_item *item, attn_interval keys, char *first_piece)
{
    item->keys = (attn_interval){min64(keys.lo, item->seq.nk), min64(keys.hi, item->seq.nk)};
    attn_item_start(item);
    attn_item_sum(item);
    for (int i = 0; i < item->strips; i++) {
        attn_strip_save(item, i, piece_at(item, first_piece, i));
    }
}

static void join_pieces(attn_forward_item *item, char *first_piece)
{
    const attn_pieces *pieces = &item->plan->pieces;
    attn_item_start(item);
    for (int64_t i = 0; i < pieces->count; i++) {
        attn_strip_add(item, 0, piece_at(item, first_piece, i * item->plan->heads),
                       i < pieces->count - 1 ? (i + 1) * pieces->segments : INT64_MAX);
    }
    attn_item_finish(item);
}

/* ---- the parallel loop ----------------------------------------------------------------------- */

typedef struct forward_job {
    const attn_cpu_plan *plan;
    const attn_problem *problem;
    attn_schedule schedule;
    attn_cells cells;
    attn_shared shared;
    char *scratch, *pieces;
} forward_job;

/* A task: an item, or rows of several sequences that share keys. */
typedef struct forward_task {
    int64_t index, place; /* number of the task, and of its scratch */
    attn_item item;
    attn_sequence seq;
    int64_t heads;          /* KV heads in turn, from that of the item on */
    const int64_t *members; /* the sequences of a family; NULL: rows of one sequence */
} forward_task;

typedef void run_function(const forward_job *job, attn_forward_item *item, int64_t index);

static void run_whole(const forward_job *job, attn_forward_item *item, int64_t index)
{
    (void)job, (void)index;
    attn_item_start(item);
    attn_item_sum(item);
    leave_all(item);
    attn_item_finish(item);
}

/* A task of items in pieces: one piece of the keys, for the items of plan->heads KV heads. Tasks of
 * the same piece and neighbouring heads follow each other. */
typedef struct piece_task {
    int64_t items, piece; /* numbers of this group of items, and of the piece */
} piece_task;

static piece_task piece_of(const forward_job *job, int64_t index)
{
    const int64_t each = job->problem->kv_heads / job->plan->heads, count = job->plan->pieces.count;
    return (piece_task){index / (each * count) * each + index % each, index / each % count};
}

static void run_part(const forward_job *job, attn_forward_item *item, int64_t index)
{
    const attn_pieces *pieces = &job->plan->pieces;
    const piece_task task = piece_of(job, index);
    const int64_t first = task.piece * piece_keys(item),
                  at = (task.items * pieces->count + task.piece) * item->heads;
    run_pieces(item, (attn_interval){first, first + piece_keys(item)},
               job->pieces + (uint64_t)at * pieces->bytes);
}

static void run_joining(const forward_job *job, attn_forward_item *item, int64_t index)
{
    const attn_pieces *pieces = &job->plan->pieces;
    const int64_t heads = job->plan->heads,
                  at = index / heads * heads * pieces->count + index % heads;
    join_pieces(item, job->pieces + (uint64_t)at * pieces->bytes);
}

/* Sums one segment of shared keys for rows of sequences that share it. */
static void run_shared(const forward_job *job, attn_forward_item *item, int64_t index)
{
    const int64_t size = item->table->segment,
                  first = attn_shared_segment(&job->shared, index) * size;
    run_pieces(item, (attn_interval){first, first + size},
               (char *)attn_shared_piece(&job->shared, index));
}

/* Joins what its sequence shares with others, and sums the keys behind it. */
static void run_behind(const forward_job *job, attn_forward_item *item, int64_t index)
{
    const int64_t segments = attn_shared_segments(&job->shared, item->seq.index);
    if (segments == 0) {
        run_whole(job, item, index);
        return;
    }
    const attn_interval all = item->keys;
    attn_item_start(item);
    for (int64_t i = 0; i < segments; i++) {
        attn_piece *piece = attn_shared_take(&job->shared, item, i);
        attn_strip_add(item, 0, piece, i + 1);
    }
    item->keys.lo = segments * item->table->segment;
    attn_item_sum(item);
    leave_all(item);
    item->keys = all;
    attn_item_finish(item);
}

static void run_task(const forward_job *job, const forward_task *task, run_function *run)
{
    const attn_scratch_map *map = &job->plan->scratch;
    const attn_ukernel *table = job->plan->table;
    attn_key_list list[2];
    attn_key_factors factors;
    char *base = job->scratch + (uint64_t)task->place * map->total;
    attn_tile_rows rows[ATTN_MAX_STRIPS];
    attn_sums sums[ATTN_MAX_STRIPS];
    attn_forward_item work = {
        .plan = job->plan,
        .problem = job->problem,
        .table = table,
        .kv_head = task->item.kv_head,
        .heads = task->heads,
        .first_head = task->item.kv_head,
        .first_row = task->item.first_row,
        .seq = task->seq,
        .members = task->members,
        .place = task->place,
        .k_space = base + map->k,
        .v_space = base + map->v,
        .s = base + map->s,
        .prob = base + map->p,
        .seen = (uint64_t *)(void *)(base + map->seen),
        .specials = {.plus = (uint64_t *)(void *)(base + map->specials)},
        .strip = base + map->strips,
        .node = base + map->nodes,
        .sum = base + map->sums,
        .rows = rows,
        .sums = sums,
        .list = list,
        .factors = &factors,
    };
    work.keys = (attn_interval){0, work.seq.nk};
    work.scores = (attn_score_rows){.problem = job->problem,
                                    .table = table,
                                    .plan = &job->plan->scores,
                                    .seq = &work.seq,
                                    .fold = job->problem->group};
    work.scores.first_head = task->item.kv_head * job->problem->group;
    work.scores.bias = base + map->bias;
    work.scores.cells = job->cells.kind ? &job->cells : NULL;
    attn_score_lanes(&work.scores, base + map->lanes);
    work.last_row = min64(task->item.last_row, work.seq.nq * job->problem->group);
    const int64_t lanes = work.last_row - work.first_row;
    work.strips = task->heads > 1         ? (int)task->heads
                  : lanes <= table->strip ? 1
                                          : (int)((lanes + table->strip - 1) / table->strip);
    work.specials.minus =
        work.specials.plus + job->plan->dv_pad * attn_special_words(table->key_block);
    run(job, &work, task->index);
}

/* The number of a task's scratch. A plan has scratch for plan->threads tasks at once. Where a loop
 * has no more tasks than that each has its own, since an executor may use any thread numbers. */
static int64_t place_of(const forward_job *job, int64_t index, int64_t tasks, int32_t thread)
{
    return tasks <= job->plan->threads ? index : thread;
}

/* Runs a task on an item, and on those behind it of as many KV heads as it takes. */
static void run_on(const forward_job *job, forward_task task, int64_t item, run_function *run)
{
    task.item = attn_schedule_item(&job->schedule, job->problem, item);
    task.seq = attn_problem_sequence(job->problem, task.item.sequence);
    run_task(job, &task, run);
}

/* Runs task `index` of a loop over items. */
static void run_item(const forward_job *job, int64_t index, int32_t thread, run_function *run)
{
    const int64_t place = place_of(job, index, job->schedule.items, thread);
    run_on(job, (forward_task){.index = index, .place = place, .heads = 1}, index, run);
}

/* Items in turn, as many as the plan gives to a task. */
static void whole_task(const void *arg, int64_t index, int32_t thread)
{
    const forward_job *job = arg;
    const int64_t grain = job->plan->grain, heads = job->plan->heads,
                  items = job->schedule.items / heads,
                  place = place_of(job, index, attn_cpu_tasks(job->plan), thread);
    for (int64_t i = index * grain; i < min64((index + 1) * grain, items); i++) {
        run_on(job, (forward_task){.index = i, .place = place, .heads = heads}, i * heads,
               run_whole);
    }
}

static void part_task(const void *arg, int64_t index, int32_t thread)
{
    const forward_job *job = arg;
    const int64_t heads = job->plan->heads,
                  place = place_of(job, index, attn_cpu_tasks(job->plan), thread);
    run_on(job, (forward_task){.index = index, .place = place, .heads = heads},
           piece_of(job, index).items * heads, run_part);
}

static void joining_task(const void *arg, int64_t index, int32_t thread)
{
    run_item(arg, index, thread, run_joining);
}

static void shared_task(const void *arg, int64_t index, int32_t thread)
{
    const forward_job *job = arg;
    forward_task task = {
        .index = index, .place = place_of(job, index, job->shared.tasks, thread), .heads = 1};
    task.members = attn_shared_rows(&job->shared, index, &task.item, &task.seq);
    run_task(job, &task, run_shared);
}

static void behind_task(const void *arg, int64_t index, int32_t thread)
{
    run_item(arg, index, thread, run_behind);
}

void attn_cpu_forward(const attn_cpu_plan *plan, const attn_problem *problem,
                      const attn_executor *executor, void *workspace)
{
    forward_job job = {.plan = plan,
                       .problem = problem,
                       .schedule = plan->schedule,
                       .cells = plan->cells,
                       .scratch = (char *)workspace + plan->table_bytes,
                       .pieces = (char *)workspace + plan->pieces.offset};
    if (plan->brief && attn_brief_run(plan, problem, executor, job.scratch)) {
        return;
    }
    attn_cells_fill(&job.cells, problem, executor, (char *)workspace + plan->cells_offset);
    attn_shared_find(&job.shared, plan, problem, workspace);
    if (problem->varlen) {
        int64_t *first_item = workspace, items = 0;
        for (int64_t b = 0; b < plan->schedule.sequences; b++) {
            attn_sequence sequence = attn_problem_sequence(problem, b);
            first_item[b] = items;
            items += attn_schedule_blocks(problem, &sequence, plan->schedule.block_rows) *
                     problem->kv_heads;
        }
        first_item[plan->schedule.sequences] = items;
        job.schedule.first_item = first_item;
    }
    const int64_t items = plan->schedule.items, pieces = plan->pieces.count;
    if (job.shared.tasks > 0) {
        attn_tasks_run(executor, job.shared.tasks, shared_task, &job, plan->table);
        attn_tasks_run(executor, items, behind_task, &job, plan->table);
    } else if (pieces == 1) {
        attn_tasks_run(executor, attn_cpu_tasks(plan), whole_task, &job, plan->table);
    } else {
        attn_tasks_run(executor, attn_cpu_tasks(plan), part_task, &job, plan->table);
        attn_tasks_run(executor, items, joining_task, &job, plan->table);
    }
}
