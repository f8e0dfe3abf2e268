/*
 * schedule.c: the work items of a forward pass on a GPU: rows of a tile, heads folded into them,
 * splits of the keys, sections, grid. The kernels' side is kernel/schedule.cuh.
 */
#include "core/error.h"
#include "cuda/forward/forward.h"
#include <math.h>

static int64_t ceil_div(int64_t n, int64_t by)
{
    return n / by + (n % by != 0);
}

/* Tiles of `rows` rows for a sequence's heads of one group, `fold` of them at a time. */
static double tiles_of_group(const attn_problem *p, int32_t rows, int64_t fold)
{
    const int64_t nq = p->varlen ? ceil_div(p->q.shape[1], p->batch) : p->q.shape[1];
    return (double)ceil_div(nq, rows / 64 * (64 / fold)) * (double)(p->group / fold);
}

/* How many heads of a group share tiles, where their rows alone leave them empty. */
static int32_t choose_fold(const attn_problem *p, int32_t rows)
{
    int32_t best = 1;
    if (p->batch == 0 || p->q.shape[1] == 0) {
        return 1;
    }
    for (int32_t fold = 2; fold <= 64 && fold <= p->group; fold++) {
        if (p->group % fold == 0 && p->q.stride[2] < (INT64_C(1) << 38) / fold &&
            tiles_of_group(p, rows, fold) < 0.9 * tiles_of_group(p, rows, best)) {
            best = fold;
        }
    }
    return best;
}

/* Few rows and many keys: keys are split, so that one sequence alone fills a GPU. A split has
 * blocks enough to pay for its merge. The batch does not count, so that bits do not depend on
 * it. */
enum { FILLED = 128 /* items */, LEAST_BLOCKS = 4, KEYS_PER_ROW = 8, MOST_SPLITS = 32 };

static int32_t choose_splits(attn_cuda_schedule *s, const attn_cuda_kernel *k,
                             const attn_problem *p)
{
    const int64_t fold = s->fold, nq = p->q.shape[1], nk = p->k.shape[1];
    const int64_t items = p->heads / fold * ceil_div(nq, k->rows / 64 * (64 / fold));
    const double o_rows = (double)p->batch * (double)nq * (double)p->heads;
    if (p->varlen || items == 0 || nk / KEYS_PER_ROW < nq || o_rows > INT32_MAX) {
        return 1;
    }
    const int64_t filled = FILLED / items, most = filled < MOST_SPLITS ? filled : MOST_SPLITS,
                  parts = ceil_div(ceil_div(nk, k->keys), LEAST_BLOCKS);
    s->least = LEAST_BLOCKS, s->few = (int32_t)(nq * KEYS_PER_ROW);
    return (int32_t)(most < 1 ? 1 : most < parts ? most : parts);
}

void attn_cuda_schedule_rows(attn_cuda_schedule *s, const attn_cuda_kernel *k,
                             const attn_problem *p)
{
    s->fold = choose_fold(p, k->rows);
    s->splits = choose_splits(s, k, p);
}

/* With a bounded right side, blocks of rows differ in weight: the heads of a section run their
 * heavy blocks first. Larger sections balance better, but their K and V should fit in half of the
 * L2 together. Beyond half as many columns as multiprocessors nothing is gained; below an eighth,
 * blocks of one head wait for each other's weight, and several multiprocessors stream each head at
 * the same time anyway. Otherwise a group of heads at a time. */
static int64_t section_columns(const attn_problem *p, const attn_cuda *x, int64_t columns,
                               int64_t group)
{
    if (p->window_right == ATTN_UNBOUNDED) {
        return group < columns ? group : columns;
    }
    double head_bytes =
        (double)p->k.shape[1] * (double)(p->d + p->dv) * (double)attn_dtype_size(p->k.dtype);
    double most = x->multiprocessors / 2.0, least = x->multiprocessors / 8.0;
    double fit = head_bytes > 0 ? x->l2_bytes / 2.0 / head_bytes * (double)group : most;
    fit = fmin(fmax(fit, least), most);
    int64_t sections = (int64_t)((double)columns / fit + 0.5);
    return ceil_div(ceil_div(columns, sections > 1 ? sections : 1), group) * group;
}

/* One CTA per multiprocessor, if CTAs stay for as many items as there are. */
static void plan_grid(attn_cuda_plan *plan, const attn_cuda *x, int64_t grid)
{
    const attn_cuda_kernel *k = &attn_cuda_kernels[plan->kernel];
    bool stays = (k->family == ATTN_CUDA_SM90 || k->family == ATTN_CUDA_SM90_STEPS) && !k->single;
    plan->grid[0] = (uint32_t)(stays && grid > x->multiprocessors ? x->multiprocessors : grid);
    plan->grid[1] = plan->grid[2] = 1;
}

/* Whether items are so uneven that a counter is worth the node that clears it. Fixed shares are
 * even where items are, and where each CTA has a heavy and a light one (following_item). */
static bool is_counted(const attn_cuda *x, const attn_problem *p, int64_t items)
{
    return !attn_problem_is_whole(p)
               ? items > x->multiprocessors
               : p->window_right != ATTN_UNBOUNDED && items > 2 * x->multiprocessors;
}

enum { COUNTER_BYTES = 128, STATE_BYTES = 4 * sizeof(float) };

/* The splits' places in the workspace. Sizes are bounded: a sequence has FILLED items at most. */
static void plan_parts(attn_cuda_plan *plan, const attn_problem *p)
{
    const attn_cuda_schedule *s = &plan->params.schedule;
    const attn_cuda_kernel *k = &attn_cuda_kernels[plan->kernel];
    const int64_t rows = p->q.shape[1] <= s->piece ? p->q.shape[1] * s->fold : k->rows;
    plan->params.parts = (attn_cuda_parts){.rows = (int32_t)rows, .columns = k->dv};
    plan->workspace_bytes = COUNTER_BYTES + (uint64_t)s->items * (uint64_t)rows *
                                                (STATE_BYTES + sizeof(float) * (uint64_t)k->dv);
    plan->merge_grid = (uint32_t)ceil_div(p->batch * p->q.shape[1] * p->heads, 4);
}

void attn_cuda_plan_place(attn_cuda_plan *plan, const attn_cuda *x, void *workspace)
{
    attn_cuda_schedule *s = &plan->params.schedule;
    if (workspace != NULL && plan->counted) {
        plan->params.counter = workspace;
    }
    if (s->splits == 1) {
        return;
    }
    if (workspace != NULL) {
        plan->params.parts.states = (float *)((char *)workspace + COUNTER_BYTES);
        plan->params.parts.sums =
            plan->params.parts.states + s->items * plan->params.parts.rows * 4;
    } else {
        s->items /= s->splits, s->splits = 1, plan->merge = -1;
        plan_grid(plan, x, s->items);
    }
}

attn_status attn_cuda_schedule_make(attn_cuda_plan *plan, const attn_cuda *x, const attn_problem *p)
{
    attn_cuda_schedule *s = &plan->params.schedule;
    const attn_cuda_kernel *k = &attn_cuda_kernels[plan->kernel];
    s->fold = s->fold > 1 ? s->fold : 1;
    s->splits = s->splits > 1 ? s->splits : 1;
    s->inverse = ((1 << 16) + s->fold - 1) / s->fold;
    s->piece = 64 / s->fold, s->rows = k->rows / 64 * s->piece;
    int64_t rows = p->q.shape[1], heads = p->heads / s->fold, columns = heads;
    int64_t blocks = ceil_div(rows, s->rows);
    if (p->varlen) {
        blocks = rows > 0 ? rows / s->rows + p->batch + 2 : 0; /* slots: kernel/schedule.cuh */
    } else if (__builtin_mul_overflow(p->batch, heads, &columns)) {
        columns = INT64_MAX;
    }
    int64_t pieces = k->family != ATTN_CUDA_GENERIC ? 1 : ceil_div(p->dv, 64), grid = 0;
    pieces = pieces < 1 ? 1 : pieces;
    if (__builtin_mul_overflow(columns, blocks, &s->items) ||
        __builtin_mul_overflow(s->items, s->splits, &s->items) ||
        __builtin_mul_overflow(s->items, pieces, &grid) || grid > INT32_MAX) {
        return attn_fail(ATTN_ERR_UNSUPPORTED,
                         "%lld heads of %lld blocks of rows are more than a GPU grid holds",
                         (long long)columns, (long long)blocks);
    }
    if (s->items == 0) {
        return ATTN_OK;
    }
    s->blocks = (int32_t)blocks;
    s->columns = (int32_t)columns;
    s->heads = (int32_t)heads;
    s->section = (int32_t)section_columns(p, x, columns, p->group / s->fold);
    plan->counted = is_counted(x, p, grid) && k->loads != ATTN_CUDA_THREADS;
    plan->workspace_bytes = plan->counted ? COUNTER_BYTES : 0;
    plan_grid(plan, x, grid);
    if (s->splits > 1) {
        plan_parts(plan, p);
    }
    if (k->single) {
        plan->grid[0] = (uint32_t)p->heads, plan->grid[1] = (uint32_t)p->batch,
        plan->grid[2] = (uint32_t)blocks;
    }
    return ATTN_OK;
}
