/*
 * schedule.c: the work items of a forward pass on a GPU: rows of a tile, heads folded into them,
 * splits of the keys, sections, grid. The kernels' side is kernel/schedule.cuh.
 */
#include "core/code_types.h"
#include "core/error.h"
#include "cuda/forward/forward.h"
#include "cuda/mask/mask.h"
#include "cuda/mask/params.h"
#include "cuda/shape.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static int64_t ceil_div(int64_t n, int64_t by)
{
    return n / by + (n % by != 0);
}

/* Tiles of `rows` rows for a sequence's heads of one group, `fold` of them at a time. */
static double tiles_of_group(const attn_problem *problem, int32_t rows, int64_t fold)
{
    const int64_t nq =
        problem->varlen ? ceil_div(problem->q.shape[1], problem->batch) : problem->q.shape[1];
    return (double)ceil_div(nq, rows / 64 * (64 / fold)) * (double)(problem->group / fold);
}

/* The number of heads of a group that share tiles, where rows of one leave them empty. */
static int32_t choose_fold(const attn_problem *problem, int32_t rows)
{
    int32_t best = 1;
    if (problem->batch == 0 || problem->q.shape[1] == 0) {
        return 1;
    }
    for (int32_t fold = 2; fold <= 64 && fold <= problem->group; fold++) {
        if (problem->group % fold == 0 && problem->q.stride[2] < (INT64_C(1) << 38) / fold &&
            tiles_of_group(problem, rows, fold) < 0.9 * tiles_of_group(problem, rows, best)) {
            best = fold;
        }
    }
    return best;
}

/* Few rows and many keys: keys are split, so that one sequence alone fills a GPU. A split has
 * blocks enough to pay for its merge, which is twice as many for rows of more than 256 columns;
 * those of forward_few for keys of 16 bits are small, and long sequences of both take several for
 * one. The batch does not count, so that bits do not depend on it. */
enum {
    FILLED = 128 /* items */,
    LEAST_BLOCKS = 4,
    FEW_BLOCKS = 1,
    KEYS_PER_ROW = 8,
    MOST_SPLITS = 32
};

static bool splits_wide(const attn_cuda_kernel *kernel)
{
    return kernel->family == ATTN_CUDA_SM90_WIDE;
}

/* True for forward_few with keys of 16 bits. */
static bool splits_small(const attn_cuda_kernel *kernel)
{
    return kernel->family == ATTN_CUDA_FEW && !attn_is_code(kernel->codes);
}

static int32_t least_blocks(const attn_cuda_kernel *kernel)
{
    return splits_wide(kernel)    ? 2 * LEAST_BLOCKS
           : splits_small(kernel) ? FEW_BLOCKS
                                  : LEAST_BLOCKS;
}

/* The most splits of up to `blocks` blocks. */
static int64_t splits_of_blocks(const attn_cuda_kernel *kernel, int64_t blocks)
{
    const bool small = splits_small(kernel);
    const int64_t splits = ceil_div(blocks, least_blocks(kernel)), even = ATTN_CUDA_EVEN_SPLITS,
                  large = ceil_div(splits, small ? ATTN_CUDA_FEW_TIMES : ATTN_CUDA_EVEN_TIMES);
    return (!splits_wide(kernel) && !small) || splits <= even ? splits
           : large > even                                     ? large
                                                              : even;
}

/* items: of a sequence. */
static int32_t choose_splits(attn_cuda_schedule *schedule, const attn_cuda_kernel *kernel,
                             const attn_problem *problem, int64_t items)
{
    const int64_t nq = problem->q.shape[1], nk = problem->keys;
    const double o_rows = (double)problem->batch * (double)nq * (double)problem->heads;
    if (problem->varlen || items == 0 || nk / KEYS_PER_ROW < nq || o_rows > INT32_MAX) {
        return 1;
    }
    const int64_t bound = splits_wide(kernel) ? ATTN_CUDA_MOST_SPLITS : MOST_SPLITS,
                  filled = FILLED / items, most = filled < bound ? filled : bound,
                  parts = splits_of_blocks(kernel, ceil_div(nk, kernel->keys));
    schedule->least = least_blocks(kernel), schedule->few = (int32_t)(nq * KEYS_PER_ROW);
    return (int32_t)(most < 1 ? 1 : most < parts ? most : parts);
}

void attn_cuda_schedule_rows(attn_cuda_schedule *schedule, const attn_cuda_kernel *kernel,
                             const attn_problem *problem)
{
    const int64_t fold = choose_fold(problem, kernel->rows),
                  blocks = ceil_div(problem->q.shape[1], kernel->rows / 64 * (64 / fold));
    schedule->fold = (int32_t)fold;
    schedule->splits = choose_splits(schedule, kernel, problem, problem->heads / fold * blocks);
}

/* Blocks of rows of a KV head. */
static int64_t blocks_of_few(const attn_cuda_kernel *kernel, const attn_problem *problem)
{
    return ceil_div(problem->q.shape[1] * problem->group, kernel->rows);
}

void attn_cuda_schedule_few(attn_cuda_schedule *schedule, const attn_cuda_kernel *kernel,
                            const attn_problem *problem)
{
    const int64_t blocks = blocks_of_few(kernel, problem);
    schedule->fold = (int32_t)problem->group;
    schedule->splits = choose_splits(schedule, kernel, problem, problem->kv_heads * blocks);
}

/* Eights of rows from a page of a tensor to the next, if they lie in one run with a stride, and
 * the TMA counts to the last one; else 0. */
static int32_t eights_of_page(const attn_tensor *t)
{
    const int64_t eight = 8 * t->stride[1], step = t->shape[0] > 1 ? t->stride[0] / eight : 1;
    const bool even = t->shape[0] == 1 || t->stride[0] % eight == 0;
    return even && eight < INT64_C(1) << 38 && step > 0 &&
                   step <= (INT32_MAX - t->shape[1]) / t->shape[0]
               ? (int32_t)step
               : 0;
}

/* A box of rows begins where a page or tile can: behind left padding anywhere. */
attn_cuda_pages attn_cuda_pages_of(const attn_problem *problem, const attn_cuda_kernel *kernel)
{
    const int64_t size = problem->k.shape[1];
    int64_t box = kernel->keys, rest = size % box;
    while (rest > 0) { /* the greatest common divisor */
        const int64_t next = box % rest;
        box = rest, rest = next;
    }
    box = attn_tensor_present(&problem->pad_k) ? 1 : box;
    attn_cuda_pages pages = {.size = (int32_t)(size < ATTN_CUDA_COUNTED ? size : ATTN_CUDA_COUNTED),
                             .box = (int32_t)box,
                             .boxes = (int32_t)(kernel->keys / box)};
    pages.inverse = ~0U / (uint32_t)pages.size;
    if (kernel->loads == ATTN_CUDA_PAGED && ATTN_SM90_JOINS(kernel->d, kernel->dv) &&
        problem->d == kernel->d && problem->dv == kernel->dv && box % 8 == 0) {
        pages.k.step = eights_of_page(&problem->k), pages.v.step = eights_of_page(&problem->v);
        pages.eights = pages.k.step > 0 && pages.v.step > 0;
    }
    const uint32_t apart = (uint32_t)kernel->keys * 8; /* chunks of all rows */
    pages.k.eight = pages.eights ? (uint32_t)kernel->d : 64,
    pages.k.chunk = pages.eights ? 64 : apart;
    pages.v.eight = pages.eights ? (uint32_t)kernel->dv : 64,
    pages.v.chunk = pages.eights ? 64 : apart;
    return pages;
}

enum { NARROW_BYTES = 8 << 20 /* of K and V of a section */, NARROW_HEADS = 4 };

/* With a bounded right side, blocks of rows differ in weight: the heads of a section run their
 * heavy blocks first. Larger sections balance better, but their K and V should fit in half of the
 * L2 together. Beyond half as many columns as multiprocessors nothing is gained; below an eighth,
 * blocks of one head wait for each other's weight, and several multiprocessors stream each head at
 * the same time anyway. Otherwise a group of heads at a time. */
static int64_t section_columns(const attn_problem *problem, const attn_cuda *cuda, int64_t columns,
                               int64_t group)
{
    if (problem->window_right == ATTN_UNBOUNDED) {
        return group < columns ? group : columns;
    }
    double head_bytes = (double)problem->keys * (double)(problem->d + problem->dv) *
                        (double)attn_dtype_size(problem->k.dtype);
    double most = cuda->multiprocessors / 2.0, least = cuda->multiprocessors / 8.0;
    double fit = head_bytes > 0 ? cuda->l2_bytes / 2.0 / head_bytes * (double)group : most;
    fit = fmin(fmax(fit, least), most);
    int64_t sections = (int64_t)((double)columns / fit + 0.5);
    return ceil_div(ceil_div(columns, sections > 1 ? sections : 1), group) * group;
}

/* Cuts columns into sections. Where items are uneven those before the last one are narrow, so that
 * heads are met for the first time, and read from memory, all along; the last one is wide, so that
 * light items are left for the end. Long keys, and head dimensions beyond 128, gain nothing. */
static void plan_sections(attn_cuda_schedule *schedule, const attn_problem *problem,
                          const attn_cuda *cuda)
{
    const int64_t columns = schedule->columns, group = problem->group / schedule->fold,
                  wide = section_columns(problem, cuda, columns, group);
    const double head_bytes = (double)problem->keys * (double)(problem->d + problem->dv) *
                              (double)attn_dtype_size(problem->k.dtype);
    const int64_t heads = head_bytes > 0 ? (int64_t)(NARROW_BYTES / head_bytes) : 0;
    const bool cut = heads >= NARROW_HEADS && heads < wide / group && wide < columns &&
                     problem->d + problem->dv <= 256;
    schedule->section = (int32_t)(cut ? heads * group : wide);
    schedule->sections =
        (int32_t)(cut ? (columns - wide) / (heads * group) + 1 : ceil_div(columns, wide));
}

/* One CTA per multiprocessor, if CTAs stay for as many items as there are. */
static void plan_grid(attn_cuda_plan *plan, const attn_cuda *cuda, int64_t grid)
{
    const attn_cuda_kernel *kernel = &attn_cuda_kernels[plan->kernel];
    bool stays = kernel->family < ATTN_CUDA_SM80 && !kernel->single;
    plan->grid[0] =
        (uint32_t)(stays && grid > cuda->multiprocessors ? cuda->multiprocessors : grid);
    plan->grid[1] = plan->grid[2] = 1;
}

/* True if items are so uneven that a counter is worth the node that clears it. Fixed shares are
 * even where items are, and where each CTA has a heavy and a light one (following_item). */
static bool is_counted(const attn_cuda *cuda, const attn_problem *problem, int64_t items)
{
    return !attn_problem_is_whole(problem)
               ? items > cuda->multiprocessors
               : problem->window_right != ATTN_UNBOUNDED && items > 2 * cuda->multiprocessors;
}

/* Rows of a CTA that merges strips, and about as many of them as there is room for on a GPU: beyond
 * that each takes more columns. */
enum { STRIP = 16, MERGES = 512, COUNTER_BYTES = 64, STATE_BYTES = 4 * sizeof(float) };

/* Places the splits in the workspace. Sizes are bounded: a sequence has FILLED items at most. */
static void plan_parts(attn_cuda_plan *plan, const attn_cuda *cuda, const attn_problem *problem)
{
    const attn_cuda_schedule *schedule = &plan->params.schedule;
    const attn_cuda_kernel *kernel = &attn_cuda_kernels[plan->kernel];
    const bool strips = splits_wide(kernel),
               few = kernel->family != ATTN_CUDA_FEW && problem->q.shape[1] <= schedule->piece;
    const int64_t filled = few ? problem->q.shape[1] * schedule->fold : kernel->rows,
                  rows = strips ? ceil_div(filled, STRIP) * STRIP : filled,
                  ctas = strips
                             ? schedule->items / schedule->splits * rows / STRIP
                             : ceil_div(problem->batch * problem->q.shape[1] * problem->heads, 4),
                  slices = strips ? ceil_div(kernel->dv, 64) : 1;
    plan->params.parts = (attn_cuda_parts){.rows = (int32_t)rows, .columns = kernel->dv};
    plan->workspace_bytes =
        COUNTER_BYTES + (uint64_t)schedule->items * (uint64_t)rows *
                            (STATE_BYTES + sizeof(float) * (uint64_t)kernel->dv);
    if (kernel->family == ATTN_CUDA_FEW && attn_cuda_may_share(cuda, problem)) { /* families */
        plan->workspace_bytes +=
            (uint64_t)problem->batch * (uint64_t)schedule->splits * sizeof(uint32_t);
    }
    plan->merge_grid[0] = (uint32_t)ctas;
    plan->merge_grid[1] = (uint32_t)(ctas * slices <= MERGES ? slices
                                     : ctas < MERGES         ? MERGES / ctas
                                                             : 1);
}

/* Gives each CTA of forward_few so many splits of its rows. */
static void join_splits(attn_cuda_plan *plan, const attn_cuda *cuda, int run)
{
    const attn_cuda_schedule *schedule = &plan->params.schedule;
    plan->run = run;
    plan->grid[0] = attn_cuda_few_grid(plan, cuda);
    if (run == schedule->splits && attn_cuda_few_adds(&attn_cuda_kernels[plan->kernel])) {
        plan->merge = -1;
    }
}

static void tell_launched(attn_cuda_plan *plan, const attn_cuda *cuda)
{
    const size_t n = strlen(plan->why);
    if (attn_cuda_kernels[attn_cuda_few_launched(plan, cuda)].stays) {
        (void)snprintf(plan->why + n, sizeof plan->why - n, "; CTAs go on to other heads");
    }
}

/* Lets a launch make bits of a mask that many heads read, if there is a workspace. */
static void plan_lanes(attn_cuda_plan *plan, const attn_cuda *cuda, const attn_problem *problem)
{
    enum { ALIGNED = 64 };
    const bool alone = attn_cuda_kernels[plan->kernel].family == ATTN_CUDA_SM90_MASK;
    const uint64_t bytes = alone ? attn_cuda_lanes_of(cuda, problem, &plan->lanes) : 0;
    if (bytes > 0) {
        const size_t n = strlen(plan->why);
        (void)snprintf(plan->why + n, sizeof plan->why - n, "; a launch makes bits of the mask");
        plan->lanes_offset = (plan->workspace_bytes / ALIGNED + 1) * ALIGNED; /* not 0 */
        plan->workspace_bytes = plan->lanes_offset + bytes;
    }
}

static void place_lanes(attn_cuda_plan *plan, void *memory)
{
    attn_tensor *lanes = &plan->lanes;
    lanes->data = memory;
    plan->params.lanes = (attn_cuda_lanes){.bits = memory,
                                           .batch = lanes->stride[0],
                                           .head = lanes->stride[1],
                                           .row = (int32_t)lanes->stride[2],
                                           .last = (int32_t)lanes->shape[2] - ATTN_CUDA_LANES_ROWS};
}

void attn_cuda_plan_place(attn_cuda_plan *plan, const attn_cuda *cuda, void *workspace)
{
    attn_cuda_schedule *schedule = &plan->params.schedule;
    if (workspace != NULL && plan->counted) {
        plan->params.counter = workspace;
    }
    if (workspace != NULL && plan->lanes_offset > 0) {
        place_lanes(plan, (char *)workspace + plan->lanes_offset);
    }
    if (plan->merge < 0) {
        return;
    }
    if (workspace != NULL) {
        plan->params.parts.states = (float *)((char *)workspace + COUNTER_BYTES);
        plan->params.parts.sums =
            plan->params.parts.states + schedule->items * plan->params.parts.rows * 4;
    } else if (attn_cuda_few_adds(&attn_cuda_kernels[plan->kernel])) {
        join_splits(plan, cuda, schedule->splits);
    } else {
        schedule->items /= schedule->splits, schedule->splits = 1, plan->merge = -1, plan->run = 1;
        plan_grid(plan, cuda, schedule->items);
    }
}

attn_status attn_cuda_schedule_make(attn_cuda_plan *plan, const attn_cuda *cuda,
                                    const attn_problem *problem)
{
    attn_cuda_schedule *schedule = &plan->params.schedule;
    const attn_cuda_kernel *kernel = &attn_cuda_kernels[plan->kernel];
    schedule->fold = schedule->fold > 1 ? schedule->fold : 1;
    schedule->splits = schedule->splits > 1 ? schedule->splits : 1;
    plan->run = 1;
    schedule->inverse = ((1 << 16) + schedule->fold - 1) / schedule->fold;
    schedule->piece = 64 / schedule->fold, schedule->rows = kernel->rows / 64 * schedule->piece;
    int64_t rows = problem->q.shape[1], heads = problem->heads / schedule->fold, columns = heads;
    int64_t blocks = kernel->family == ATTN_CUDA_FEW ? blocks_of_few(kernel, problem)
                                                     : ceil_div(rows, schedule->rows);
    if (problem->varlen) {
        blocks = rows > 0 ? rows / schedule->rows + problem->batch + 2
                          : 0; /* slots: kernel/schedule.cuh */
    } else if (__builtin_mul_overflow(problem->batch, heads, &columns)) {
        columns = INT64_MAX;
    }
    int64_t pieces = !attn_cuda_is_generic(kernel) ? 1 : ceil_div(problem->dv, 64), grid = 0;
    pieces = pieces < 1 ? 1 : pieces;
    if (__builtin_mul_overflow(columns, blocks, &schedule->items) ||
        __builtin_mul_overflow(schedule->items, schedule->splits, &schedule->items) ||
        __builtin_mul_overflow(schedule->items, pieces, &grid) || grid > INT32_MAX) {
        return attn_fail(ATTN_ERR_UNSUPPORTED,
                         "%lld heads of %lld blocks of rows are more than a GPU grid holds",
                         (long long)columns, (long long)blocks);
    }
    if (schedule->items == 0) {
        return ATTN_OK;
    }
    schedule->blocks = (int32_t)blocks;
    schedule->columns = (int32_t)columns;
    schedule->heads = (int32_t)heads;
    plan_sections(schedule, problem, cuda);
    plan->counted = is_counted(cuda, problem, grid) && kernel->loads != ATTN_CUDA_THREADS;
    plan->workspace_bytes = plan->counted ? COUNTER_BYTES : 0;
    plan_grid(plan, cuda, grid);
    if (kernel->family == ATTN_CUDA_FEW) {
        join_splits(plan, cuda, attn_cuda_few_run(cuda, kernel, problem, schedule));
        tell_launched(plan, cuda);
    }
    if (plan->merge >= 0) {
        plan_parts(plan, cuda, problem);
    }
    plan_lanes(plan, cuda, problem);
    if (kernel->single) {
        plan->grid[0] = (uint32_t)problem->heads, plan->grid[1] = (uint32_t)problem->batch,
        plan->grid[2] = (uint32_t)blocks;
    }
    return ATTN_OK;
}
