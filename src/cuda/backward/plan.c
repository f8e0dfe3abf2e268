/*
 * plan.c: problem x GPU -> plan of the backward pass: kernels, grids, workspace. Pure. The mirror
 * of cpu/backward/plan.c.
 *
 * The workspace: LSE and delta of all rows; notes of blocks that backward_sm90 or backward_sm80
 * leaves undone; partial, one sum for each row or for each key of each query head, for one gradient
 * of a bias or of slopes at a time.
 */
#include "cuda/backward/backward.h"
#include "core/arena.h"
#include "core/count.h"
#include "core/overlap.h"
#include "cuda/forward/forward.h"
#include "cuda/shape.h"
#include "cuda/starts/starts.h"
#include <math.h>
#include <stdio.h>

enum { BLOCK = 64, DELTA_ROWS = 8 };

/* ---- launches -------------------------------------------------------------------------------- */

/* Appends a launch of `ctas` CTAs, if there are any. */
static attn_status add_launch(attn_cuda_grad_plan *plan, const attn_cuda *cuda, int kernel,
                              const attn_cuda_grad_launch *like, double ctas)
{
    attn_cuda_grad_launch *launch = &plan->launch[plan->launches];
    if (ctas > INT32_MAX) {
        return attn_fail(ATTN_ERR_UNSUPPORTED, "%.0f blocks are more than a GPU grid holds", ctas);
    }
    if (attn_cuda_kernels[kernel].shared_bytes > cuda->shared_bytes) {
        return attn_fail(ATTN_ERR_UNSUPPORTED, "%s: %s wants %d bytes of shared memory", cuda->name,
                         attn_cuda_kernels[kernel].name, attn_cuda_kernels[kernel].shared_bytes);
    }
    *launch = *like;
    launch->kernel = kernel;
    launch->grid = (uint32_t)ctas;
    plan->launches += ctas > 0;
    return ATTN_OK;
}

/* LSE and delta: 16 bytes at a time where rows of O allow. */
static attn_status add_delta(attn_cuda_grad_plan *plan, const attn_cuda *cuda)
{
    const attn_problem *problem = &plan->params.grads.problem;
    const bool fast = plan->split || (plan->fast && problem->o.dtype == problem->q.dtype &&
                                      attn_cuda_is_boxed(&problem->o) && problem->dv % 8 == 0);
    const int kernel = attn_cuda_grad_kernel(problem,
                                             plan->split ? ATTN_CUDA_BACKWARD_SM90_F32
                                             : fast      ? ATTN_CUDA_BACKWARD_SM90
                                                         : ATTN_CUDA_BACKWARD_GENERIC,
                                             ATTN_CUDA_GRAD_DELTA);
    const attn_cuda_grad_launch launch = {.pieces = 1};
    if (fast && plan->peaks_offset == 0 && plan->params.rows > 0) { /* it finds peaks itself */
        plan->params.clear_words = (int64_t)plan->clear_words;
        plan->clear_words = 0;
        const int ahead = attn_cuda_grad_ahead(plan, cuda);
        if (ahead >= 0) {
            return add_launch(plan, cuda, ahead, &launch, plan->params.ahead);
        }
    }
    return add_launch(plan, cuda, kernel, &launch,
                      (double)attn_cuda_grad_blocks(
                          plan->params.rows, fast ? attn_cuda_kernels[kernel].rows : DELTA_ROWS));
}

/* dK, dV and dQ of f32 in one launch, which does results again itself. */
static attn_status add_single(attn_cuda_grad_plan *plan, const attn_cuda *cuda)
{
    const attn_problem *problem = &plan->params.grads.problem;
    const attn_cuda_grad_launch launch = {.layers = (uint32_t)problem->batch};
    plan->clear_words = 0;
    plan->items = problem->batch * problem->heads;
    plan->params.single = attn_cuda_split_single(&plan->params.grads);
    return add_launch(plan, cuda, attn_cuda_grad_ordered(problem, ATTN_CUDA_GRAD_SINGLE), &launch,
                      (double)problem->heads);
}

/* dK and dV, or dQ, by backward_sm90. */
static attn_status add_fast(attn_cuda_grad_plan *plan, const attn_cuda *cuda, int32_t part)
{
    const attn_gradients *grads = &plan->params.grads;
    const attn_problem *problem = &grads->problem;
    const bool keys = part == ATTN_CUDA_GRAD_KEYS;
    const int kernel = attn_cuda_grad_ordered(problem, !keys          ? ATTN_CUDA_GRAD_ROUND
                                                       : plan->rounds ? ATTN_CUDA_GRAD_ROUNDED
                                                                      : ATTN_CUDA_GRAD_ORDERED);
    attn_cuda_grad_launch launch = {.pieces = 1,
                                    .early = plan->early || (keys && plan->params.ahead > 0)};
    double count;
    launch.items = attn_cuda_grad_items_of(
        problem, keys, keys ? problem->kv_heads : problem->heads,
        keys ? attn_cuda_kernels[kernel].keys : attn_cuda_kernels[kernel].rows, &count);
    if (keys) {
        attn_cuda_grad_spread(&launch.items, problem, &attn_cuda_kernels[kernel]);
        count *= (double)launch.items.shares;
        launch.items.count = (int64_t)count;
        launch.items.rests = plan->rests;
        plan->items += launch.items.count;
        count += (double)plan->rests.heads * plan->rests.blocks;
        if (plan->params.whole && attn_cuda_kernels[kernel].stays && count <= INT32_MAX) {
            count = fmin(count, cuda->multiprocessors);
        }
        count *= attn_cuda_grad_ctas(&attn_cuda_kernels[kernel]);
    }
    return add_launch(plan, cuda, kernel, &launch, count);
}

/* The same by backward_sm80 or backward_generic. */
static attn_status add_blocks(attn_cuda_grad_plan *plan, const attn_cuda *cuda, int32_t part)
{
    const attn_problem *problem = &plan->params.grads.problem;
    const bool keys = part == ATTN_CUDA_GRAD_KEYS;
    const int kernel = plan->mma ? attn_cuda_grad_mma(&plan->params.grads, part)
                                 : attn_cuda_grad_kernel(problem, ATTN_CUDA_BACKWARD_GENERIC, part);
    attn_cuda_grad_launch launch = {.pieces = plan->mma ? 1 : attn_cuda_grad_pieces(problem, keys)};
    double count;
    launch.items = attn_cuda_grad_items_of(
        problem, keys, keys ? problem->kv_heads : problem->heads,
        keys ? attn_cuda_kernels[kernel].keys : attn_cuda_kernels[kernel].rows, &count);
    plan->items += (int64_t)count;
    return add_launch(plan, cuda, kernel, &launch, count * launch.pieces);
}

/* The blocks that backward_sm90 or backward_sm80 has noted, by backward_generic: 16 notes a CTA. */
static attn_status add_noted(attn_cuda_grad_plan *plan, const attn_cuda *cuda)
{
    const attn_problem *problem = &plan->params.grads.problem;
    const attn_cuda_grad_launch launch = {.early = plan->early};
    double keys, rows;
    (void)attn_cuda_grad_items_of(problem, true, problem->kv_heads, BLOCK, &keys);
    (void)attn_cuda_grad_items_of(problem, false, problem->heads, BLOCK, &rows);
    return add_launch(
        plan, cuda,
        attn_cuda_grad_kernel(problem, ATTN_CUDA_BACKWARD_GENERIC, ATTN_CUDA_GRAD_NOTED), &launch,
        fmin(ceil(fmax(keys, rows) / 16), 2.0 * cuda->multiprocessors));
}

/* dK, dV and dQ. */
static attn_status add_products(attn_cuda_grad_plan *plan, const attn_cuda *cuda)
{
    const attn_gradients *grads = &plan->params.grads;
    const bool keys = grads->dk.data || grads->dv.data || (plan->fast && grads->dq.data),
               rows = grads->dq.data != NULL;
    attn_status (*const add)(attn_cuda_grad_plan *, const attn_cuda *, int32_t) =
        plan->fast ? add_fast : add_blocks;
    TRY(keys ? add(plan, cuda, ATTN_CUDA_GRAD_KEYS) : ATTN_OK);
    TRY(rows && !plan->rounds ? add(plan, cuda, ATTN_CUDA_GRAD_ROWS) : ATTN_OK);
    return (plan->fast || plan->mma) && (keys || rows) ? add_noted(plan, cuda) : ATTN_OK;
}

static int32_t kind_of_bias(const attn_tensor *d_bias)
{
    return d_bias->shape[3] == 1   ? ATTN_CUDA_BY_ROWS
           : d_bias->shape[2] == 1 ? ATTN_CUDA_BY_KEYS
                                   : ATTN_CUDA_ELEMENTS;
}

/* True if an element adds so few terms that a sum in f32 (sums_sm90.cuh) errs less than a rounding
 * to f16: n terms by n 2^-24 of their sizes. */
static bool has_few_terms(const attn_problem *problem, const attn_tensor *out)
{
    const double sharing = (double)(out->shape[0] == 1 ? problem->batch : 1) *
                           (double)(out->shape[1] == 1 ? problem->heads : 1);
    return sharing <= 4096;
}

/* Whether there are sums of dS of keys on tensor cores. */
static bool has_fast_sums(const attn_cuda_grad_plan *plan)
{
    return plan->fast &&
           attn_cuda_grad_kernel(&plan->params.grads.problem, ATTN_CUDA_BACKWARD_SM90_STEPS,
                                 ATTN_CUDA_GRAD_SUMS) >= 0;
}

/* A launch of sums of dS. CTAs of sums_sm90.cuh do one item after the other. */
static attn_status add_scores(attn_cuda_grad_plan *plan, const attn_cuda *cuda, int kernel,
                              attn_cuda_grad_launch *launch, double count)
{
    if (attn_cuda_kernels[kernel].family != ATTN_CUDA_BACKWARD_GENERIC && count <= INT32_MAX) {
        launch->items.count = (int64_t)count;
        count = fmin(count, cuda->multiprocessors);
    }
    return add_launch(plan, cuda, kernel, launch, count);
}

/* A gradient that is a sum of dS; what an element has is summed first, then what shares it. */
static attn_status add_sum(attn_cuda_grad_plan *plan, const attn_cuda *cuda, const attn_tensor *out,
                           int32_t kind)
{
    const attn_problem *problem = &plan->params.grads.problem;
    attn_cuda_grad_launch launch = {.sum = {.out = *out, .kind = kind}};
    const double pairs = (double)out->shape[0] * (double)out->shape[1];
    if (out->data == NULL) {
        return ATTN_OK;
    }
    const bool fast = has_fast_sums(plan) && attn_cuda_grad_is_stepped(problem) &&
                      kind != ATTN_CUDA_BY_ROWS && kind != ATTN_CUDA_SINKS &&
                      (kind != ATTN_CUDA_ELEMENTS || has_few_terms(problem, out));
    const bool elements =
        kind == ATTN_CUDA_ELEMENTS && attn_cuda_grad_has_elements(&plan->params.grads);
    const attn_cuda_family family = !fast      ? ATTN_CUDA_BACKWARD_GENERIC
                                    : elements ? ATTN_CUDA_BACKWARD_SM90_ELEMENTS
                                               : ATTN_CUDA_BACKWARD_SM90_STEPS;
    const int scores =
        attn_cuda_grad_kernel(problem, family, fast ? ATTN_CUDA_GRAD_SUMS : ATTN_CUDA_GRAD_SCORES);
    const int32_t rows = attn_cuda_kernels[scores].rows, keys = attn_cuda_kernels[scores].keys;
    if (kind == ATTN_CUDA_ELEMENTS) {
        return add_scores(plan, cuda, scores, &launch,
                          pairs * (double)attn_cuda_grad_blocks(out->shape[2], rows) *
                              (double)attn_cuda_grad_blocks(out->shape[3], keys));
    }
    if (kind != ATTN_CUDA_SINKS) {
        const bool by_keys = kind == ATTN_CUDA_BY_KEYS || fast;
        double count;
        launch.items = attn_cuda_grad_items_of(problem, by_keys, problem->heads,
                                               by_keys ? keys : rows, &count);
        TRY(add_scores(plan, cuda, scores, &launch, count));
        launch.sum.kind = by_keys ? ATTN_CUDA_BY_KEYS : kind;
    }
    return add_launch(
        plan, cuda,
        attn_cuda_grad_kernel(problem, ATTN_CUDA_BACKWARD_GENERIC, ATTN_CUDA_GRAD_FINISH), &launch,
        pairs * (double)out->shape[2] * (double)out->shape[3]);
}

/* ---- the plan -------------------------------------------------------------------------------- */

/* Turns and sums of dQ: slots for the tiles of each head, and varlen for what sequences leave of
 * theirs. CTAs that share an item have turns of their own, and sums of dK and dV. So have rests. */
static void plan_sums(attn_cuda_grad_plan *plan, const attn_cuda *cuda, attn_arena *arena)
{
    const attn_problem *problem = &plan->params.grads.problem;
    const attn_cuda_kernel *kernel =
        &attn_cuda_kernels[attn_cuda_grad_ordered(problem, ATTN_CUDA_GRAD_ORDERED)];
    const int64_t ctas = attn_cuda_grad_ctas(kernel), heads = problem->q.shape[0] * problem->heads,
                  n = problem->q.shape[1],
                  slots = problem->varlen ? n / kernel->rows + problem->batch + 2
                                          : attn_cuda_grad_blocks(n, kernel->rows);
    attn_cuda_grad_items items = {0};
    attn_cuda_grad_spread(&items, problem, kernel);
    plan->shares = items.shares;
    if (plan->shares <= 1 && attn_problem_is_whole(problem)) {
        plan->rests = attn_cuda_grad_rests_of(problem, kernel, cuda->multiprocessors / ctas);
    }
    const int64_t keys = problem->k.shape[1], kv_heads = problem->q.shape[0] * problem->kv_heads,
                  key_slots = problem->varlen ? keys / kernel->keys + problem->batch + 2
                                              : attn_cuda_grad_blocks(keys, kernel->keys),
                  rests = (int64_t)plan->rests.heads * plan->rests.blocks,
                  blocks = (plan->shares > 1 ? kv_heads * key_slots : rests) * ctas;
    plan->params.slots = slots, plan->params.key_slots = key_slots;
    plan->turns_offset = attn_arena_take(arena, heads * slots * ctas + 1, 1, sizeof(uint32_t));
    plan->key_turns_offset = attn_arena_take(arena, blocks, 1, sizeof(uint32_t));
    plan->sums_offset =
        attn_arena_take(arena, heads * slots, (int64_t)kernel->rows * kernel->d, sizeof(float));
    plan->key_sums_offset = attn_arena_take(
        arena, blocks, ATTN_GRAD_SHARE_FLOATS(kernel->d, kernel->keys / ctas), sizeof(float));
}

/* The kernel that a plan's bits are named by: .._ordered also where .._rounded runs. */
static int main_kernel(const attn_cuda_grad_plan *plan)
{
    const attn_problem *problem = &plan->params.grads.problem;
    if (plan->fast) {
        return attn_cuda_grad_ordered(problem, plan->single ? ATTN_CUDA_GRAD_SINGLE
                                                            : ATTN_CUDA_GRAD_ORDERED);
    }
    return plan->mma
               ? attn_cuda_grad_mma(&plan->params.grads, ATTN_CUDA_GRAD_KEYS)
               : attn_cuda_grad_kernel(problem, ATTN_CUDA_BACKWARD_GENERIC, ATTN_CUDA_GRAD_KEYS);
}

static attn_status plan_workspace(attn_cuda_grad_plan *plan, const attn_cuda *cuda)
{
    const attn_gradients *grads = &plan->params.grads;
    const attn_problem *problem = &grads->problem;
    const uint64_t real = problem->q.dtype == ATTN_F64 ? 8 : 4;
    const int64_t heads = problem->q.shape[0] * problem->heads;
    const bool bias = grads->d_bias.data && kind_of_bias(&grads->d_bias) != ATTN_CUDA_ELEMENTS;
    const bool slopes = grads->d_alibi.data != NULL;
    const bool by_keys = bias && kind_of_bias(&grads->d_bias) == ATTN_CUDA_BY_KEYS;
    const bool keys = by_keys || (slopes && has_fast_sums(plan));
    const bool rows = (bias && !by_keys) || (slopes && !has_fast_sums(plan));
    int64_t sums = rows ? problem->q.shape[1] : 0;
    sums = keys && problem->k.shape[1] > sums ? problem->k.shape[1] : sums;
    attn_arena arena = {0};
    plan->lse_offset = attn_arena_take(&arena, plan->params.rows, 1, real);
    plan->delta_offset = attn_arena_take(&arena, plan->params.rows, 1, real);
    double key_notes, row_notes;
    (void)attn_cuda_grad_items_of(problem, true, problem->kv_heads, BLOCK, &key_notes);
    (void)attn_cuda_grad_items_of(problem, false, problem->heads, BLOCK, &row_notes);
    plan->bad_keys_offset = attn_arena_take(&arena, (int64_t)key_notes, 1, 1);
    plan->bad_rows_offset = attn_arena_take(&arena, (int64_t)row_notes, 1, 1);
    if (attn_cuda_kernels[main_kernel(plan)].dtype == ATTN_F16) {
        plan->peaks_offset = attn_arena_take(
            &arena, attn_problem_sequences(problem) * problem->kv_heads, 2, sizeof(uint32_t));
        plan->capped_offset = plan->fast && problem->softcap > 0
                                  ? attn_arena_take(&arena, plan->params.rows, 1, sizeof(uint32_t))
                                  : 0;
    }
    if (plan->fast) {
        plan_sums(plan, cuda, &arena);
    }
    const uint64_t clear_end = plan->fast ? plan->sums_offset : arena.bytes;
    plan->clear_words = (size_t)((clear_end - plan->bad_keys_offset) / sizeof(uint32_t));
    if (plan->split) {
        const int kernel = attn_cuda_grad_ordered(problem, ATTN_CUDA_GRAD_ORDERED);
        attn_cuda_split_plan(plan, &arena, attn_cuda_kernels[kernel].d);
    }
    if (plan->peaks_offset > 0) {
        plan->reach_offset = attn_arena_take(&arena, plan->params.rows, 1, sizeof(float));
    }
    plan->partial_offset = attn_arena_take(&arena, heads, sums, sizeof(double));
    plan->next_chunk_offset =
        attn_arena_take(&arena, plan->fast ? cuda->multiprocessors : 0, 1, sizeof(uint32_t));
    plan->starts_offset = attn_arena_take(&arena, 1, 1, attn_cuda_starts_bytes(problem));
    return attn_arena_room(&arena, "workspace", &plan->workspace_bytes);
}

/* Chooses the way of the products, and says why. */
static void choose(attn_cuda_grad_plan *plan, const attn_cuda *cuda)
{
    const attn_gradients *grads = &plan->params.grads;
    const attn_problem *problem = &grads->problem;
    const bool f32 = problem->q.dtype == ATTN_F32;
    const char *lacks = attn_cuda_grad_wgmma_lacks(grads, cuda),
               *mma_lacks = attn_cuda_grad_mma_lacks(grads, cuda);
    plan->fast = lacks == NULL;
    plan->mma = !plan->fast && mma_lacks == NULL;
    plan->split = plan->fast && f32;
    plan->single = plan->split && attn_cuda_split_is_single(grads);
    plan->early = plan->fast && !f32 &&
                  attn_cuda_kernels[attn_cuda_grad_ordered(problem, ATTN_CUDA_GRAD_ORDERED)].stays;
    (void)snprintf(plan->why, sizeof plan->why, "%s%s",
                   plan->split  ? "f32 as bf16 parts"
                   : plan->fast ? attn_cuda_grad_gathers(problem)
                                      ? "tiles come by TMA, the mask or bias element by element"
                                      : "tiles come by TMA"
                   : plan->mma  ? "not backward_sm90: "
                                : "not on tensor cores: ",
                   plan->fast                                      ? ""
                   : plan->mma || (cuda->capability == 90 && !f32) ? lacks
                                                                   : mma_lacks);
}

attn_status attn_cuda_grad_plan_make(attn_cuda_grad_plan *plan, const attn_cuda *cuda,
                                     const attn_gradients *grads)
{
    const attn_problem *problem = &grads->problem;
    *plan = (attn_cuda_grad_plan){.params = {.grads = *grads}};
    if (grads->d_bias.data && attn_elements_may_meet(&grads->d_bias)) {
        return attn_fail(ATTN_ERR_UNSUPPORTED,
                         "d_bias whose elements share memory is for contexts of the CPU only");
    }
    if (!attn_count_extents(problem, problem->k.shape[1], INT64_MAX / 64, &plan->params.rows)) {
        return attn_fail(ATTN_ERR_OVERFLOW,
                         "q.shape = (%lld, %lld, %lld, %lld) or k.shape[1] = %lld is too large",
                         (long long)problem->q.shape[0], (long long)problem->q.shape[1],
                         (long long)problem->heads, (long long)problem->d,
                         (long long)problem->k.shape[1]);
    }
    TRY(attn_cuda_check_counts(problem));
    choose(plan, cuda);
    TRY(plan_workspace(plan, cuda));
    if (plan->mma) {
        plan->params.aligned = attn_cuda_grad_aligned(grads);
    }
    if (plan->fast || plan->mma) {
        plan->params.scale_log2 = (float)(problem->scale * 1.4426950408889634);
        plan->params.kept = problem->dropout.scale > 0 ? (float)problem->dropout.scale : 1;
    }
    if (plan->fast && attn_cuda_grad_is_stepped(problem)) {
        plan->params.steps = attn_cuda_grad_steps(problem);
        plan->params.hides_keys = attn_cuda_grad_hides_keys(problem);
        plan->params.dropout = attn_cuda_dropout_of(&problem->dropout);
        plan->params.has_origins =
            attn_tensor_present(&problem->q_origin) || attn_tensor_present(&problem->k_origin);
        plan->params.inverse_cap = problem->softcap > 0 ? (float)(1 / problem->softcap) : 0;
    }
    if (plan->fast && plan->shares <= 1 && attn_problem_is_whole(problem)) {
        const attn_sequence whole = attn_problem_whole_sequence(problem, 0);
        plan->params.whole = true;
        plan->params.band = attn_mask_band(problem, &whole);
        plan->rounds = attn_cuda_grad_rounds(grads, &plan->params.band, cuda);
    }
    if (plan->single) {
        TRY(add_single(plan, cuda));
    } else {
        TRY(add_delta(plan, cuda));
        TRY(add_products(plan, cuda));
    }
    TRY(add_sum(plan, cuda, &grads->d_bias, kind_of_bias(&grads->d_bias)));
    TRY(add_sum(plan, cuda, &grads->d_alibi, ATTN_CUDA_SLOPES));
    TRY(add_sum(plan, cuda, &grads->d_sinks, ATTN_CUDA_SINKS));
    plan->kernel = main_kernel(plan);
    return ATTN_OK;
}
