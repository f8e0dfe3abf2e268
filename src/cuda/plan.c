/*
 * plan.c: problem x GPU -> plan of the forward pass: kernel, schedule, grid. Pure. The mirror of cpu/plan.c.
 */
#include "core/error.h"
#include "core/mask.h"
#include "cuda/forward.h"
#include <float.h>
#include <math.h>
#include <stdio.h>

/* As kernel/shape_sm90.cuh lays it out: tiles, barriers, posts, bounds, and what aligning to 1024 may cost. */
#define SM90_BYTES(d, groups, bn) (64 * (groups) * (d)*2 + 4 * (bn) * (d)*2 + 512 + 64 * (groups)*8 + 1024)
#define GENERIC_BYTES(real) ((2 * 32 * 65 + 64 * 65 + 64 * 64 + 3 * 64) * (int)sizeof(real))

#define ATTN_FORWARD_SM90(name, bf16, d, groups, bn, registers, turns, tma)                                         \
    {#name, bf16 ? ATTN_BF16 : ATTN_F16, 90, d, 64 * (groups), bn, 128 * ((groups) + 1), SM90_BYTES(d, groups, bn), \
     tma},
#define ATTN_FORWARD_GENERIC(name, storage, real) {#name, storage, 0, 0, 64, 64, 256, GENERIC_BYTES(real), false},
const attn_cuda_kernel attn_cuda_kernels[ATTN_CUDA_KERNELS] = {
#include "cuda/kernels.inc"
};

/* ---- which kernel ------------------------------------------------------------------------------------------------ */

/* Why forward_sm90 cannot do it, or NULL. */
static const char *sm90_lacks(const attn_problem *p, const attn_cuda *x)
{
    double c = p->scale * 1.4426950408889634;
    if (x->capability != 90) {
        return "it is for sm_90";
    }
    if (p->q.dtype != ATTN_F16 && p->q.dtype != ATTN_BF16) {
        return "it is for f16 and bf16";
    }
    if (p->d > 256 || p->dv > 256) {
        return "its head dims end at 256";
    }
    if (p->mask.data || p->bias.data || p->alibi.data || p->softcap > 0) {
        return "it has no mask, bias, alibi or softcap";
    }
    if (!(c >= (double)FLT_MIN)) {
        return "its scale must be positive";
    }
    if (p->q.shape[1] > INT32_MAX / 2 || p->k.shape[1] > INT32_MAX / 2) {
        return "its lengths end at 2^30";
    }
    return NULL;
}

/* 16-byte pieces of rows: 16-bit elements side by side, rows and heads at multiples of 16 bytes. */
static bool is_aligned(const attn_tensor *t)
{
    bool ok = (uintptr_t)t->data % 16 == 0 && (t->stride[3] == 1 || t->shape[3] == 1);
    for (int a = 0; a < 3; a++) {
        ok &= t->shape[a] == 1 || t->stride[a] % 8 == 0;
    }
    return ok;
}

/* What the TMA takes. */
static bool is_boxed(const attn_tensor *t)
{
    bool ok = is_aligned(t) && t->data != NULL && t->shape[3] > 0;
    for (int a = 0; a < 3; a++) {
        ok &= t->shape[a] == 1 || (t->stride[a] > 0 && t->stride[a] < INT64_C(1) << 38);
        ok &= t->shape[a] > 0 && t->shape[a] <= INT32_MAX;
    }
    return ok;
}

/* Padding inside a tensor must not be loaded, and the TMA knows only the tensor's own end. */
static const char *tma_lacks(const attn_problem *p)
{
    if (p->varlen || p->used_k.dtype != 0) {
        return "sequences end inside the tensors";
    }
    return is_boxed(&p->q) && is_boxed(&p->k) && is_boxed(&p->v) ? NULL : "strides or alignment are not for the TMA";
}

static int find_kernel(int32_t dtype, int64_t d, int capability, bool tma)
{
    for (int i = 0; i < ATTN_CUDA_KERNELS; i++) {
        const attn_cuda_kernel *k = &attn_cuda_kernels[i];
        if (k->dtype == dtype && k->capability == capability && k->tma == tma && (k->d == 0 || d <= k->d)) {
            return i;
        }
    }
    return -1;
}

static void choose_kernel(attn_cuda_plan *plan, const attn_cuda *x, const attn_problem *p)
{
    const char *lacks = sm90_lacks(p, x), *no_tma = tma_lacks(p);
    if (lacks) {
        plan->kernel = find_kernel(p->q.dtype, 0, 0, false);
        (void)snprintf(plan->why, sizeof plan->why, "not forward_sm90: %s", lacks);
        return;
    }
    plan->kernel = find_kernel(p->q.dtype, p->d > p->dv ? p->d : p->dv, 90, !no_tma);
    (void)snprintf(plan->why, sizeof plan->why, no_tma ? "threads load the tiles: %s" : "tiles come by TMA%s",
                   no_tma ? no_tma : "");
}

/* ---- schedule ---------------------------------------------------------------------------------------------------- */

static int64_t ceil_div(int64_t n, int64_t by)
{
    return n / by + (n % by != 0);
}

/* With a bounded right side, blocks of rows differ in weight: the heads of a section run their heavy blocks first. The
 * larger the sections the better the balance; but K and V should come from the L2: they fit in half of it, or else some
 * multiprocessors share each head and stream it at the same time. Otherwise a group of heads at a time. */
static int64_t section_columns(const attn_problem *p, const attn_cuda *x, int64_t columns)
{
    if (p->window_right == ATTN_UNBOUNDED) {
        return p->group < columns ? p->group : columns;
    }
    int64_t head_bytes = p->k.shape[1] * (p->d + p->dv) * (int64_t)attn_dtype_size(p->k.dtype);
    int64_t fit = head_bytes > 0 ? x->l2_bytes / 2 / head_bytes : columns, share = x->multiprocessors / 2;
    int64_t sections = ceil_div(columns, fit > share ? fit : share);
    return ceil_div(ceil_div(columns, sections), p->group) * p->group;
}

static attn_status plan_schedule(attn_cuda_plan *plan, const attn_cuda *x, const attn_problem *p)
{
    attn_cuda_schedule *s = &plan->params.schedule;
    const attn_cuda_kernel *k = &attn_cuda_kernels[plan->kernel];
    int64_t rows = p->q.shape[1], columns, blocks = ceil_div(rows, k->rows);
    s->rows = k->rows;
    if (p->varlen) {
        columns = p->heads;
        blocks = rows > 0 ? rows / k->rows + p->batch + 2 : 0; /* slots: kernel/schedule.cuh */
    } else if (__builtin_mul_overflow(p->batch, p->heads, &columns)) {
        columns = INT64_MAX;
    }
    int64_t pieces = k->capability == 90 ? 1 : ceil_div(p->dv, 64), grid = 0;
    pieces = pieces < 1 ? 1 : pieces;
    if (__builtin_mul_overflow(columns, blocks, &s->items) || __builtin_mul_overflow(s->items, pieces, &grid) ||
        grid > INT32_MAX) {
        return attn_fail(ATTN_ERR_UNSUPPORTED, "%lld heads of %lld blocks of rows are more than a GPU grid holds",
                         (long long)columns, (long long)blocks);
    }
    if (s->items == 0) {
        return ATTN_OK;
    }
    s->blocks = (int32_t)blocks;
    s->columns = (int32_t)columns;
    s->section = (int32_t)section_columns(p, x, columns);
    bool stays = k->capability == 90; /* persistent: one CTA per multiprocessor */
    plan->workspace_bytes = k->tma && grid > x->multiprocessors && p->window_right != ATTN_UNBOUNDED ? 128 : 0;
    plan->grid = (uint32_t)(stays && grid > x->multiprocessors ? x->multiprocessors : grid);
    return ATTN_OK;
}

attn_status attn_cuda_plan_make(attn_cuda_plan *plan, const attn_cuda *x, const attn_problem *p)
{
    *plan = (attn_cuda_plan){.params = {.problem = *p}};
    choose_kernel(plan, x, p);
    plan->params.scale_log2 = (float)(p->scale * 1.4426950408889634);
    plan->params.aligned = (is_aligned(&p->q) ? ATTN_CUDA_ALIGNED_Q : 0) |
                           (is_aligned(&p->k) ? ATTN_CUDA_ALIGNED_K : 0) |
                           (is_aligned(&p->v) ? ATTN_CUDA_ALIGNED_V : 0);
    return plan_schedule(plan, x, p);
}

double attn_cuda_flops(const attn_problem *p)
{
    if (p->varlen || p->used_q.dtype != 0 || p->used_k.dtype != 0) {
        return 0;
    }
    attn_sequence s = attn_problem_sequence(p, 0);
    double scores = 0;
    for (int64_t i = 0; i < s.nq; i++) {
        attn_interval keys = attn_mask_row(p, &s, i);
        scores += (double)(keys.hi - keys.lo);
    }
    return 2.0 * (double)(p->d + p->dv) * scores * (double)p->heads * (double)p->batch;
}
