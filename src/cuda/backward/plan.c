/*
 * plan.c: problem x GPU -> plan of the backward pass: kernels, grids, workspace. Pure. The mirror
 * of cpu/backward/plan.c.
 *
 * The workspace: LSE and delta of all rows; partial, one sum for each row or for each key of each
 * query head, for one gradient of a bias or of slopes at a time.
 */
#include "cuda/backward/backward.h"
#include "core/arena.h"
#include "core/overlap.h"

enum { BLOCK = 64, DELTA_ROWS = 8 };

static int64_t ceil_div(int64_t n, int64_t by)
{
    return n / by + (n % by != 0);
}

static int find_kernel(const attn_problem *problem, int32_t part)
{
    const int32_t dtype = problem->q.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    int i = 0;
    while (attn_cuda_kernels[i].family != ATTN_CUDA_BACKWARD_GENERIC ||
           attn_cuda_kernels[i].dtype != dtype || attn_cuda_kernels[i].loads != part) {
        i++;
    }
    return i;
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Appends a launch of `ctas` CTAs; of none, nothing. */
static attn_status add_launch(attn_cuda_grad_plan *plan, const attn_cuda *cuda, int32_t part,
                              const attn_cuda_grad_launch *like, double ctas)
{
    attn_cuda_grad_launch *launch = &plan->launch[plan->launches];
    const int kernel = find_kernel(&plan->params.grads.problem, part);
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

/* The items of a kernel that owns blocks of rows, or of keys, and their number. */
static attn_cuda_grad_items make_items(const attn_problem *problem, bool keys, int64_t heads,
                                       double *count)
{
    const int64_t n = keys ? problem->k.shape[1] : problem->q.shape[1];
    const attn_cuda_grad_items items = {keys, BLOCK, ceil_div(n, BLOCK), heads};
    *count = !problem->varlen ? (double)problem->batch * (double)heads * (double)items.blocks
             : n > 0          ? (double)heads * (double)(n / BLOCK + problem->batch + 2)
                              : 0;
    return items;
}

/* dK and dV, dQ. */
static attn_status add_products(attn_cuda_grad_plan *plan, const attn_cuda *cuda)
{
    const attn_gradients *grads = &plan->params.grads;
    const attn_problem *problem = &grads->problem;
    const int64_t widest = problem->d > problem->dv ? problem->d : problem->dv;
    double count;
    if (grads->dk.data || grads->dv.data) {
        const int64_t pieces = ceil_div(widest, BLOCK);
        const attn_cuda_grad_launch launch = {
            .items = make_items(problem, true, problem->kv_heads, &count),
            .pieces = (int32_t)pieces};
        TRY(add_launch(plan, cuda, ATTN_CUDA_GRAD_KEYS, &launch, count * (double)pieces));
        plan->items += (int64_t)count;
    }
    if (grads->dq.data) {
        const int64_t pieces = ceil_div(problem->d, BLOCK);
        const attn_cuda_grad_launch launch = {
            .items = make_items(problem, false, problem->heads, &count), .pieces = (int32_t)pieces};
        TRY(add_launch(plan, cuda, ATTN_CUDA_GRAD_ROWS, &launch, count * (double)pieces));
        plan->items += (int64_t)count;
    }
    return ATTN_OK;
}

static int32_t kind_of_bias(const attn_tensor *d_bias)
{
    return d_bias->shape[3] == 1   ? ATTN_CUDA_BY_ROWS
           : d_bias->shape[2] == 1 ? ATTN_CUDA_BY_KEYS
                                   : ATTN_CUDA_ELEMENTS;
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
    if (kind == ATTN_CUDA_ELEMENTS) {
        return add_launch(plan, cuda, ATTN_CUDA_GRAD_SCORES, &launch,
                          pairs * (double)ceil_div(out->shape[2], BLOCK) *
                              (double)ceil_div(out->shape[3], BLOCK));
    }
    if (kind != ATTN_CUDA_SINKS) {
        double count;
        launch.items = make_items(problem, kind == ATTN_CUDA_BY_KEYS, problem->heads, &count);
        TRY(add_launch(plan, cuda, ATTN_CUDA_GRAD_SCORES, &launch, count));
    }
    return add_launch(plan, cuda, ATTN_CUDA_GRAD_FINISH, &launch,
                      pairs * (double)out->shape[2] * (double)out->shape[3]);
}

/* ---- the plan -------------------------------------------------------------------------------- */

static attn_status plan_workspace(attn_cuda_grad_plan *plan)
{
    const attn_gradients *grads = &plan->params.grads;
    const attn_problem *problem = &grads->problem;
    const uint64_t real = problem->q.dtype == ATTN_F64 ? 8 : 4;
    const int64_t heads = problem->q.shape[0] * problem->heads;
    const bool bias = grads->d_bias.data && kind_of_bias(&grads->d_bias) != ATTN_CUDA_ELEMENTS;
    const bool keys = bias && kind_of_bias(&grads->d_bias) == ATTN_CUDA_BY_KEYS;
    const bool rows = (bias && !keys) || grads->d_alibi.data;
    int64_t sums = rows ? problem->q.shape[1] : 0;
    sums = keys && problem->k.shape[1] > sums ? problem->k.shape[1] : sums;
    attn_arena arena = {0};
    plan->lse_offset = attn_arena_take(&arena, plan->params.rows, 1, real);
    plan->delta_offset = attn_arena_take(&arena, plan->params.rows, 1, real);
    plan->partial_offset = attn_arena_take(&arena, heads, sums, sizeof(double));
    return attn_arena_room(&arena, &plan->workspace_bytes);
}

static bool too_large(const attn_problem *problem, int64_t *rows)
{
    int64_t heads, keys;
    return __builtin_mul_overflow(problem->q.shape[0], problem->heads, &heads) ||
           __builtin_mul_overflow(heads, problem->q.shape[1], rows) ||
           __builtin_mul_overflow(heads, problem->k.shape[1], &keys) || *rows > INT64_MAX / 64 ||
           keys > INT64_MAX / 64;
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
    if (too_large(problem, &plan->params.rows)) {
        return attn_fail(ATTN_ERR_OVERFLOW,
                         "q.shape = (%lld, %lld, %lld, %lld) or k.shape[1] = %lld is too large",
                         (long long)problem->q.shape[0], (long long)problem->q.shape[1],
                         (long long)problem->heads, (long long)problem->d,
                         (long long)problem->k.shape[1]);
    }
    const attn_cuda_grad_launch plain = {.pieces = 1};
    TRY(add_launch(plan, cuda, ATTN_CUDA_GRAD_DELTA, &plain,
                   (double)ceil_div(plan->params.rows, DELTA_ROWS)));
    TRY(add_products(plan, cuda));
    TRY(add_sum(plan, cuda, &grads->d_bias, kind_of_bias(&grads->d_bias)));
    TRY(add_sum(plan, cuda, &grads->d_alibi, ATTN_CUDA_SLOPES));
    TRY(add_sum(plan, cuda, &grads->d_sinks, ATTN_CUDA_SINKS));
    plan->kernel = find_kernel(problem, ATTN_CUDA_GRAD_KEYS);
    return plan_workspace(plan);
}
