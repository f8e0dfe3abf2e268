/*
 * plan.c: problem x GPU -> plan of the forward pass: kernel, schedule, grid. Pure. The mirror of
 * cpu/forward/plan.c.
 */
#include "core/error.h"
#include "core/mask.h"
#include "cuda/forward/forward.h"
#include "cuda/shape.h"
#include <float.h>
#include <math.h>
#include <stdio.h>

#define ATTN_FORWARD_SINGLE(name, dtype, d, bn, ctas) \
    {#name,                                           \
     ATTN_CUDA_SM90,                                  \
     dtype,                                           \
     d,                                               \
     64,                                              \
     bn,                                              \
     256,                                             \
     ATTN_SINGLE_BYTES(dtype, d, bn),                 \
     ATTN_CUDA_THREADS,                               \
     true},
#define SM90_KERNEL(name, family, dtype, d, groups, bn, loads, steps) \
    {#name,                                                           \
     family,                                                          \
     dtype,                                                           \
     d,                                                               \
     64 * (groups),                                                   \
     bn,                                                              \
     128 * ((groups) + 1),                                            \
     ATTN_SM90_BYTES(dtype, d, groups, bn, loads, steps),             \
     loads,                                                           \
     false},
#define ATTN_FORWARD_SM90(name, dtype, d, groups, bn, registers, turns, loads) \
    SM90_KERNEL(name, ATTN_CUDA_SM90, dtype, d, groups, bn, loads, false)
#define ATTN_FORWARD_SM90_STEPS(name, dtype, d, groups, bn, registers, turns, loads) \
    SM90_KERNEL(name, ATTN_CUDA_SM90_STEPS, dtype, d, groups, bn, loads, true)
#define ATTN_FORWARD_SM80(name, dtype, d, warps, bn, ctas) \
    {#name,                                                \
     ATTN_CUDA_SM80,                                       \
     dtype,                                                \
     d,                                                    \
     16 * (warps),                                         \
     bn,                                                   \
     32 * (warps),                                         \
     ATTN_SM80_BYTES(dtype, d, warps, bn),                 \
     ATTN_CUDA_THREADS,                                    \
     false},
#define ATTN_FORWARD_GENERIC(name, storage, real)                      \
    {#name, ATTN_CUDA_GENERIC,        storage,           0,    64, 64, \
     256,   ATTN_GENERIC_BYTES(real), ATTN_CUDA_THREADS, false},
const attn_cuda_kernel attn_cuda_kernels[ATTN_CUDA_KERNELS] = {
#include "cuda/kernels.inc"
};

/* ---- which kernel ---------------------------------------------------------------------------- */

enum { GRID_YZ = 65535 };   /* a grid's extent in its second and third direction */
enum { COUNTED = 1 << 30 }; /* what kernels count in 32 bits */

/* Whether it is one for the kernels for one block of keys (kernel/single_sm90.cuh). */
static bool is_single(const attn_problem *p, int32_t keys)
{
    return p->k.shape[1] <= keys && p->q.shape[1] <= 64 * GRID_YZ && p->batch <= GRID_YZ &&
           attn_problem_is_whole(p) && p->d % 4 == 0 && p->dv % 4 == 0 &&
           p->o.dtype == p->q.dtype && attn_cuda_is_aligned(&p->q) && attn_cuda_is_aligned(&p->k) &&
           attn_cuda_is_aligned(&p->v) && attn_cuda_is_aligned(&p->o);
}

static int find_kernel(const attn_cuda *x, attn_cuda_family family, const attn_problem *p,
                       int32_t loads)
{
    int64_t d = p->d > p->dv ? p->d : p->dv;
    for (int i = 0; i < ATTN_CUDA_KERNELS; i++) {
        const attn_cuda_kernel *k = &attn_cuda_kernels[i];
        if (k->family == family && k->dtype == p->q.dtype && k->loads == loads &&
            (k->d == 0 || d <= k->d) && k->shared_bytes <= x->shared_bytes &&
            (!k->single || is_single(p, k->keys))) {
            return i;
        }
    }
    return -1;
}

/* The kernel, or an error. */
static attn_status take_kernel(attn_cuda_plan *plan, const attn_cuda *x, attn_cuda_family family,
                               int32_t loads)
{
    const attn_problem *p = &plan->params.problem;
    plan->kernel = find_kernel(x, family, p, loads);
    if (plan->kernel < 0) {
        return attn_fail(
            ATTN_ERR_UNSUPPORTED,
            "%s: no kernel for d = %lld, d_v = %lld fits into %d bytes of shared memory", x->name,
            (long long)p->d, (long long)p->dv, x->shared_bytes);
    }
    return ATTN_OK;
}

/* Why the tensor cores cannot do it, or NULL. */
static const char *tensor_cores_lack(const attn_problem *p, const attn_cuda *x)
{
    const int64_t most = p->q.dtype == ATTN_F32 ? 128 : 256;
    if (p->q.dtype == ATTN_F64) {
        return "f64";
    }
    if (p->precise && p->q.dtype != ATTN_F32) {
        return "they take probabilities in 16 bits, and ATTN_PRECISE is set";
    }
    if (p->q.shape[1] > INT32_MAX / 2 || p->k.shape[1] > INT32_MAX / 2) {
        return "lengths end at 2^30";
    }
    if (p->d > most || p->dv > most) {
        return "head dims end at 256 (128 for f32)";
    }
    return find_kernel(x, ATTN_CUDA_SM80, p, ATTN_CUDA_THREADS) >= 0
               ? NULL
               : "its tiles exceed this GPU's shared memory";
}

/* Why forward_sm90 cannot do what the tensor cores can, or NULL. */
static const char *sm90_lacks(const attn_problem *p, const attn_cuda *x)
{
    if (x->capability != 90) {
        return "it is for sm_90";
    }
    return attn_cuda_has_steps(p) ? attn_cuda_steps_lack(p) : NULL;
}

/* What the TMA takes. */
static bool is_boxed(const attn_tensor *t)
{
    bool ok = attn_cuda_is_aligned(t) && t->data != NULL && t->shape[3] > 0;
    for (int a = 0; a < 3; a++) {
        ok &= t->shape[a] == 1 || (t->stride[a] > 0 && t->stride[a] < INT64_C(1) << 38);
        ok &= t->shape[a] > 0 && t->shape[a] <= INT32_MAX;
    }
    return ok;
}

static const char *tma_lacks(const attn_problem *p)
{
    if (p->q.dtype == ATTN_F32) {
        return "f32 is split into parts";
    }
    return is_boxed(&p->q) && is_boxed(&p->k) && is_boxed(&p->v)
               ? NULL
               : "strides or alignment are not for the TMA";
}

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

static attn_cuda_family sm90_family(const attn_problem *p)
{
    return attn_cuda_has_steps(p) ? ATTN_CUDA_SM90_STEPS : ATTN_CUDA_SM90;
}

/* forward_sm90 by TMA, whose inputs are laid out for it. */
static attn_status choose_boxed(attn_cuda_plan *plan, const attn_cuda *x, const attn_problem *p)
{
    const bool whole = attn_problem_is_whole(p), steps = attn_cuda_has_steps(p);
    int32_t *fold = &plan->params.schedule.fold;
    TRY(take_kernel(plan, x, sm90_family(p), ATTN_CUDA_RAGGED));
    *fold = steps ? 1 : choose_fold(p, attn_cuda_kernels[plan->kernel].rows);
    if (whole && !steps && *fold == 1) {
        TRY(take_kernel(plan, x, ATTN_CUDA_SM90, ATTN_CUDA_WHOLE));
    }
    int n = snprintf(plan->why, sizeof plan->why, "tiles come by TMA%s",
                     whole ? "" : "; sequences have lengths or origins");
    if (*fold > 1) {
        (void)snprintf(plan->why + n, sizeof plan->why - (size_t)n,
                       "; rows of %d heads share a tile", *fold);
    }
    return ATTN_OK;
}

static attn_status choose_kernel(attn_cuda_plan *plan, const attn_cuda *x, const attn_problem *p)
{
    const char *none = tensor_cores_lack(p, x), *no_sm90 = sm90_lacks(p, x), *no_tma = tma_lacks(p);
    if (none) {
        TRY(take_kernel(plan, x, ATTN_CUDA_GENERIC, ATTN_CUDA_THREADS));
        (void)snprintf(plan->why, sizeof plan->why, "not on tensor cores: %s", none);
    } else if (no_sm90) {
        TRY(take_kernel(plan, x, ATTN_CUDA_SM80, ATTN_CUDA_THREADS));
        (void)snprintf(plan->why, sizeof plan->why, "not forward_sm90: %s", no_sm90);
    } else if (no_tma) {
        TRY(take_kernel(plan, x, sm90_family(p), ATTN_CUDA_THREADS));
        (void)snprintf(plan->why, sizeof plan->why, "threads load the tiles: %s%s", no_tma,
                       attn_cuda_kernels[plan->kernel].single ? "; all keys are one block" : "");
    } else {
        TRY(choose_boxed(plan, x, p));
    }
    return ATTN_OK;
}

/* ---- schedule -------------------------------------------------------------------------------- */

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

static attn_status plan_schedule(attn_cuda_plan *plan, const attn_cuda *x, const attn_problem *p)
{
    attn_cuda_schedule *s = &plan->params.schedule;
    const attn_cuda_kernel *k = &attn_cuda_kernels[plan->kernel];
    s->fold = s->fold > 1 ? s->fold : 1;
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
    /* persistent: one CTA per multiprocessor */
    bool stays = (k->family == ATTN_CUDA_SM90 || k->family == ATTN_CUDA_SM90_STEPS) && !k->single;
    const bool even = p->window_right == ATTN_UNBOUNDED && attn_problem_is_whole(p);
    plan->workspace_bytes =
        k->loads != ATTN_CUDA_THREADS && grid > x->multiprocessors && !even ? 128 : 0;
    plan->grid[0] = (uint32_t)(stays && grid > x->multiprocessors ? x->multiprocessors : grid);
    plan->grid[1] = plan->grid[2] = 1;
    if (k->single) {
        plan->grid[0] = (uint32_t)p->heads, plan->grid[1] = (uint32_t)p->batch,
        plan->grid[2] = (uint32_t)blocks;
    }
    return ATTN_OK;
}

static attn_cuda_place place(const attn_tensor *t)
{
    int64_t size = (int64_t)attn_dtype_size(t->dtype);
    return (attn_cuda_place){t->data, t->stride[0] * size, t->stride[1] * size,
                             t->stride[2] * size};
}

/* Of a problem that is one (is_single): its numbers fit. */
static attn_cuda_single single(const attn_problem *p, int32_t block)
{
    attn_sequence whole = attn_problem_whole_sequence(p, 0);
    attn_cuda_single s = {
        .q = place(&p->q), .k = place(&p->k), .v = place(&p->v), .o = place(&p->o)};
    s.band = attn_mask_band(p, &whole), s.masked = whole.nk < block || attn_mask_differs(p);
    s.group = (int32_t)p->group, s.d = (int32_t)p->d, s.dv = (int32_t)p->dv;
    return s;
}

attn_status attn_cuda_plan_make(attn_cuda_plan *plan, const attn_cuda *x, const attn_problem *p)
{
    if (p->d > COUNTED || p->dv > COUNTED || (p->varlen && p->batch > COUNTED)) {
        return attn_fail(ATTN_ERR_UNSUPPORTED,
                         "a GPU's kernels count to 2^30: d = %lld, d_v = %lld, %lld sequences",
                         (long long)p->d, (long long)p->dv, (long long)p->batch);
    }
    *plan = (attn_cuda_plan){.params = {.problem = *p}};
    TRY(choose_kernel(plan, x, p));
    plan->params.steps = attn_cuda_has_steps(p);
    plan->params.steps_sm90 = attn_cuda_steps_of(p);
    plan->params.scale_log2 = (float)((plan->params.steps ? 1 : p->scale) * 1.4426950408889634);
    plan->params.o_boxed = attn_cuda_kernels[plan->kernel].loads != ATTN_CUDA_THREADS &&
                           p->o.dtype == p->q.dtype && is_boxed(&p->o);
    plan->params.statistics =
        p->lse.data != NULL || p->row_max.data != NULL || p->sinks.data != NULL;
    plan->params.whole = attn_problem_is_whole(p);
    plan->params.aligned = (attn_cuda_is_aligned(&p->q) ? ATTN_CUDA_ALIGNED_Q : 0) |
                           (attn_cuda_is_aligned(&p->k) ? ATTN_CUDA_ALIGNED_K : 0) |
                           (attn_cuda_is_aligned(&p->v) ? ATTN_CUDA_ALIGNED_V : 0);
    if (attn_cuda_kernels[plan->kernel].single) {
        plan->params.single = single(p, attn_cuda_kernels[plan->kernel].keys);
    }
    return plan_schedule(plan, x, p);
}
