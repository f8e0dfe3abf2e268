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
#include <string.h>

/* ---- which kernel ---------------------------------------------------------------------------- */

enum { GRID_YZ = 65535 }; /* most CTAs of a grid in its second and third direction */

/* True for problems of the kernels for one block of keys (kernel/forward/single_sm90.cuh). */
static bool is_single(const attn_problem *problem, int32_t keys)
{
    return !problem->paged && problem->keys <= keys && problem->q.shape[1] <= 64 * GRID_YZ &&
           problem->batch <= GRID_YZ && attn_problem_is_whole(problem) && problem->d % 4 == 0 &&
           problem->dv % 4 == 0 && problem->o.dtype == problem->q.dtype &&
           attn_cuda_is_aligned(&problem->q) && attn_cuda_is_aligned(&problem->k) &&
           attn_cuda_is_aligned(&problem->v) && attn_cuda_is_aligned(&problem->o);
}

static int find_kernel(const attn_cuda *cuda, attn_cuda_family family, const attn_problem *problem,
                       int32_t loads)
{
    for (int i = 0; i < ATTN_CUDA_KERNELS; i++) {
        const attn_cuda_kernel *kernel = &attn_cuda_kernels[i];
        if (kernel->family == family && kernel->dtype == problem->q.dtype &&
            kernel->loads == loads &&
            (kernel->d == 0 || (problem->d <= kernel->d && problem->dv <= kernel->dv)) &&
            kernel->shared_bytes <= cuda->shared_bytes &&
            (!kernel->single || is_single(problem, kernel->keys))) {
            return i;
        }
    }
    return -1;
}

/* Sets the kernel of the plan. Errors: unsupported. */
static attn_status take_kernel(attn_cuda_plan *plan, const attn_cuda *cuda, attn_cuda_family family,
                               int32_t loads)
{
    const attn_problem *problem = &plan->params.problem;
    plan->kernel = find_kernel(cuda, family, problem, loads);
    if (plan->kernel < 0) {
        return attn_fail(
            ATTN_ERR_UNSUPPORTED,
            "%s: no kernel for d = %lld, d_v = %lld fits into %d bytes of shared memory",
            cuda->name, (long long)problem->d, (long long)problem->dv, cuda->shared_bytes);
    }
    return ATTN_OK;
}

static const char *tma_lacks(const attn_problem *problem)
{
    if (problem->q.dtype == ATTN_F32) {
        return "f32 is split into parts";
    }
    if (attn_tensor_present(&problem->pad_k) && !problem->paged) {
        return "keys begin behind padding";
    }
    return attn_cuda_is_boxed(&problem->q) && attn_cuda_is_boxed(&problem->k) &&
                   attn_cuda_is_boxed(&problem->v)
               ? NULL
               : "strides or alignment are not for the TMA";
}

/* True for head dims beyond those of one warpgroup's sums. */
static bool is_wide(const attn_problem *problem)
{
    return problem->d > 256 || problem->dv > 256;
}

/* True if V is the first columns of K. */
static bool is_view(const attn_problem *problem)
{
    bool same = problem->v.data == problem->k.data && problem->dv <= problem->d;
    for (int a = 0; a < 4; a++) {
        same &= problem->v.stride[a] == problem->k.stride[a];
    }
    return same;
}

/* How tiles come where the TMA takes the tensors. */
static int32_t boxed_loads(const attn_problem *problem)
{
    static const int32_t loads[2][2] = {{ATTN_CUDA_RAGGED, ATTN_CUDA_VIEW},
                                        {ATTN_CUDA_PAGED, ATTN_CUDA_PAGED_VIEW}};
    return loads[problem->paged][is_wide(problem) && is_view(problem)];
}

/* True where ATTN_PRECISE asks for more than 16 bits of probabilities. */
static bool is_precise(const attn_problem *problem)
{
    return problem->precise && problem->q.dtype != ATTN_F32;
}

static const char *wide_lacks(const attn_problem *problem, const attn_cuda *cuda)
{
    const int32_t loads = problem->paged ? boxed_loads(problem) : ATTN_CUDA_RAGGED;
    if (cuda->capability != 90 || find_kernel(cuda, ATTN_CUDA_SM90_WIDE, problem, loads) < 0) {
        return problem->paged ? "keys in pages end at head dim 256 (sm_90, V a view of K: 576)"
                              : "head dims end at 256 (sm_90, 16 bits: 576, d_v 512)";
    }
    if (problem->dropout.on || is_precise(problem)) {
        return problem->dropout.on ? "dropout ends at head dim 256"
                                   : "ATTN_PRECISE ends at head dim 256";
    }
    return attn_cuda_has_steps(problem) ? "score steps end at head dim 256" : tma_lacks(problem);
}

/* True if forward_few is the kernel for keys that are not quantised: for so few rows of a KV head
 * that K and V alone take time. Where no other kernel splits the keys, as beside most score steps,
 * rows may be twice as many. */
static bool has_few_rows(const attn_problem *problem, const attn_cuda *cuda)
{
    enum { FEW = 8 };
    const int32_t scores = attn_cuda_scores_of(problem);
    const bool split = scores == ATTN_CUDA_SCALED ||
                       ((scores == ATTN_CUDA_CAPPED || scores == ATTN_CUDA_SLOPED) &&
                        cuda->capability == 90 && !tma_lacks(problem)); /* by forward_sm90 */
    return !attn_cuda_is_quantised(problem) && problem->group > 0 &&
           problem->q.shape[1] <= (split ? FEW : 2 * FEW) / problem->group &&
           !attn_cuda_few_lacks(problem, cuda);
}

static attn_cuda_family sm80_family(const attn_problem *problem)
{
    static const attn_cuda_family families[2][2] = {
        {ATTN_CUDA_SM80, ATTN_CUDA_SM80_DROPOUT},
        {ATTN_CUDA_SM80_PRECISE, ATTN_CUDA_SM80_PRECISE_DROPOUT}};
    return families[is_precise(problem)][problem->dropout.on];
}

/* The reason for which the tensor cores cannot do the problem, or NULL. */
static const char *tensor_cores_lack(const attn_problem *problem, const attn_cuda *cuda)
{
    if (problem->q.dtype == ATTN_F64) {
        return "f64";
    }
    if (attn_cuda_is_quantised(problem)) {
        return attn_cuda_few_lacks(problem, cuda);
    }
    if (problem->q.shape[1] > INT32_MAX / 2 || problem->keys > INT32_MAX / 2) {
        return "lengths end at 2^30";
    }
    if (is_wide(problem)) {
        return wide_lacks(problem, cuda);
    }
    return find_kernel(cuda, sm80_family(problem), problem, ATTN_CUDA_THREADS) >= 0
               ? NULL
               : "its tiles exceed this GPU's shared memory";
}

static attn_cuda_family dropout_family(const attn_problem *problem)
{
    return attn_cuda_scores_of(problem) == ATTN_CUDA_SCALED ? ATTN_CUDA_SM90_DROPOUT
                                                            : ATTN_CUDA_SM90_DROPOUT_STEPS;
}

/* The reason for which forward_sm90 cannot do a problem of the tensor cores, or NULL. */
static const char *sm90_lacks(const attn_problem *problem, const attn_cuda *cuda)
{
    if (cuda->capability != 90) {
        return "it is for sm_90";
    }
    if (is_precise(problem)) {
        return "it takes probabilities in 16 bits, and ATTN_PRECISE is set";
    }
    if (problem->q.dtype == ATTN_F32 && (problem->d > 128 || problem->dv > 128)) {
        return "head dims of f32 end at 128 there";
    }
    if (problem->paged && (problem->q.dtype == ATTN_F32 || problem->dropout.on)) {
        return "keys in pages are for 16 bits there, without dropout";
    }
    if (problem->dropout.on &&
        find_kernel(cuda, dropout_family(problem), problem, ATTN_CUDA_RAGGED) < 0) {
        return "dropout there is for 16 bits, with score steps for bf16 up to d = 128";
    }
    if (problem->dropout.on && tma_lacks(problem)) {
        return "there is dropout, and strides, alignment or padding are not for the TMA";
    }
    const char *none = attn_cuda_has_steps(problem) ? attn_cuda_steps_lack(problem) : NULL;
    return none || !problem->paged ? none : tma_lacks(problem);
}

static attn_cuda_family sm90_family(const attn_problem *problem, int32_t scores)
{
    static const attn_cuda_family families[] = {
        [ATTN_CUDA_SCALED] = ATTN_CUDA_SM90,         [ATTN_CUDA_STEPPED] = ATTN_CUDA_SM90_STEPS,
        [ATTN_CUDA_CAPPED] = ATTN_CUDA_SM90_SOFTCAP, [ATTN_CUDA_SLOPED] = ATTN_CUDA_SM90_ALIBI,
        [ATTN_CUDA_MASKED] = ATTN_CUDA_SM90_MASK,    [ATTN_CUDA_BIASED] = ATTN_CUDA_SM90_BIAS};
    return is_wide(problem)                               ? ATTN_CUDA_SM90_WIDE
           : problem->paged && scores == ATTN_CUDA_SCALED ? ATTN_CUDA_SM90_PAGED
           : problem->dropout.on                          ? dropout_family(problem)
                                                          : families[scores];
}

/* Tells of shared tiles and splits. n: bytes of the reason so far. */
static void tell_splits(attn_cuda_plan *plan, int n)
{
    const attn_cuda_schedule *schedule = &plan->params.schedule;
    if (schedule->fold > 1) {
        n += snprintf(plan->why + n, sizeof plan->why - (size_t)n,
                      "; rows of %d heads share a tile", schedule->fold);
    }
    if (schedule->splits > 1) {
        (void)snprintf(plan->why + n, sizeof plan->why - (size_t)n,
                       "; keys are split into up to %d parts", schedule->splits);
    }
}

/* True if forward_sm90 can load by TMA: inputs are laid out for it. */
static attn_status choose_boxed(attn_cuda_plan *plan, const attn_cuda *cuda,
                                const attn_problem *problem)
{
    const bool whole = attn_problem_is_whole(problem);
    const int32_t scores = attn_cuda_scores_of(problem);
    attn_cuda_schedule *schedule = &plan->params.schedule;
    TRY(take_kernel(plan, cuda, sm90_family(problem, scores), boxed_loads(problem)));
    /* notes are on rows of one head, and on all keys; so are places of dropout, and its factor */
    if (!ATTN_SM90_HAS_NOTES(scores) && !problem->dropout.on) {
        attn_cuda_schedule_rows(schedule, &attn_cuda_kernels[plan->kernel], problem);
    }
    const attn_cuda_family family = attn_cuda_kernels[plan->kernel].family;
    if (schedule->fold <= 1 && schedule->splits <= 1 && attn_cuda_suits_whole(problem) &&
        find_kernel(cuda, family, problem, ATTN_CUDA_WHOLE) >= 0) {
        TRY(take_kernel(plan, cuda, family, ATTN_CUDA_WHOLE));
    }
    int n = snprintf(
        plan->why, sizeof plan->why, "tiles come by TMA%s%s%s",
        problem->paged ? ", keys in pages" : "", whole ? "" : "; sequences have lengths or origins",
        problem->dropout.on           ? "; dropout"
        : scores == ATTN_CUDA_STEPPED ? "; score steps one by one, slower than one of them alone"
                                      : "");
    if (schedule->splits > 1) {
        plan->merge = find_kernel(cuda, is_wide(problem) ? ATTN_CUDA_SM90_WIDE : ATTN_CUDA_SM90,
                                  problem, ATTN_CUDA_MERGE);
    }
    tell_splits(plan, n);
    return ATTN_OK;
}

static void choose_few(attn_cuda_plan *plan, const attn_cuda *cuda, const attn_problem *problem)
{
    plan->kernel = attn_cuda_find_few(cuda, problem);
    attn_cuda_schedule_few(&plan->params.schedule, &attn_cuda_kernels[plan->kernel], problem);
    if (plan->params.schedule.splits > 1) {
        plan->merge = find_kernel(cuda, ATTN_CUDA_FEW, problem, ATTN_CUDA_MERGE);
    }
    tell_splits(plan,
                snprintf(plan->why, sizeof plan->why, "%s%s",
                         attn_cuda_is_quantised(problem) ? "codes become bf16 for tensor cores"
                                                         : "few rows: warps load the keys",
                         problem->paged ? ", keys in pages" : ""));
}

static attn_status choose_kernel(attn_cuda_plan *plan, const attn_cuda *cuda,
                                 const attn_problem *problem)
{
    const char *none = tensor_cores_lack(problem, cuda), *no_sm90 = sm90_lacks(problem, cuda),
               *no_tma = tma_lacks(problem);
    if (has_few_rows(problem, cuda)) {
        choose_few(plan, cuda, problem);
    } else if (none) {
        TRY(take_kernel(plan, cuda,
                        attn_cuda_is_quantised(problem) ? ATTN_CUDA_CODES : ATTN_CUDA_GENERIC,
                        ATTN_CUDA_THREADS));
        (void)snprintf(plan->why, sizeof plan->why, "not on tensor cores: %s", none);
    } else if (attn_cuda_is_quantised(problem)) {
        choose_few(plan, cuda, problem);
    } else if (no_sm90) {
        TRY(take_kernel(plan, cuda, sm80_family(problem), ATTN_CUDA_THREADS));
        (void)snprintf(plan->why, sizeof plan->why, "not forward_sm90: %s", no_sm90);
    } else if (no_tma) {
        const int32_t scores = attn_cuda_has_steps(problem) ? ATTN_CUDA_STEPPED : ATTN_CUDA_SCALED;
        TRY(take_kernel(plan, cuda, sm90_family(problem, scores), ATTN_CUDA_THREADS));
        (void)snprintf(plan->why, sizeof plan->why, "threads load the tiles: %s%s", no_tma,
                       attn_cuda_kernels[plan->kernel].single ? "; all keys are one block" : "");
    } else {
        TRY(choose_boxed(plan, cuda, problem));
    }
    return ATTN_OK;
}

static attn_cuda_index index_of(const attn_tensor *tensor)
{
    const bool wide = tensor->dtype == ATTN_I64;
    return (attn_cuda_index){tensor->data, attn_axis_step(tensor, 0), wide};
}

/* Fills the arguments of a problem of is_single, whose numbers fit. */
static attn_cuda_single single(const attn_problem *problem, int32_t block)
{
    attn_sequence whole = attn_problem_whole_sequence(problem, 0);
    attn_cuda_single s = {.q = attn_cuda_place_of(&problem->q),
                          .k = attn_cuda_place_of(&problem->k),
                          .v = attn_cuda_place_of(&problem->v),
                          .o = attn_cuda_place_of(&problem->o)};
    s.band = attn_mask_band(problem, &whole),
    s.masked = whole.nk < block || attn_mask_differs(problem);
    s.group = (int32_t)problem->group, s.d = (int32_t)problem->d, s.dv = (int32_t)problem->dv;
    return s;
}

/* True if tiles of the kernel have whole chunks of the problem's columns: one box has all. */
static bool is_joined(const attn_cuda_kernel *kernel, const attn_problem *problem)
{
    return kernel->loads != ATTN_CUDA_THREADS && kernel->loads != ATTN_CUDA_PAGED &&
           ATTN_SM90_JOINS(kernel->d, kernel->dv) && problem->d == kernel->d &&
           problem->dv == kernel->dv;
}

attn_status attn_cuda_check_counts(const attn_problem *problem)
{
    return problem->d > ATTN_CUDA_COUNTED || problem->dv > ATTN_CUDA_COUNTED ||
                   (problem->varlen && problem->batch > ATTN_CUDA_COUNTED)
               ? attn_fail(ATTN_ERR_UNSUPPORTED,
                           "a GPU's kernels count to 2^30: d = %lld, d_v = %lld, %lld sequences",
                           (long long)problem->d, (long long)problem->dv, (long long)problem->batch)
               : ATTN_OK;
}

/* Plans attention alone. */
static attn_status make(attn_cuda_plan *plan, const attn_cuda *cuda, const attn_problem *problem)
{
    TRY(attn_cuda_check_counts(problem));
    *plan = (attn_cuda_plan){.merge = -1, .params = {.problem = *problem}};
    TRY(choose_kernel(plan, cuda, problem));
    plan->params.steps = attn_cuda_has_steps(problem);
    plan->params.steps_sm90 = attn_cuda_steps_of(problem);
    const attn_cuda_family family = attn_cuda_kernels[plan->kernel].family;
    const bool scaled =
        !plan->params.steps || ((family == ATTN_CUDA_SM90_STEPS || family == ATTN_CUDA_SM90_MASK ||
                                 family == ATTN_CUDA_SM90_DROPOUT_STEPS) &&
                                attn_cuda_folds_scale(problem));
    plan->params.scale_log2 = (float)((scaled ? problem->scale : 1) * 1.4426950408889634);
    /* the TMA was seen to write beyond a row that ends within 16 bytes */
    plan->params.o_boxed = attn_cuda_kernels[plan->kernel].loads != ATTN_CUDA_THREADS &&
                           problem->o.dtype == problem->q.dtype && problem->dv % 8 == 0 &&
                           attn_cuda_is_boxed(&problem->o);
    plan->params.joined = is_joined(&attn_cuda_kernels[plan->kernel], problem);
    plan->params.statistics = problem->row_max.data != NULL || problem->sinks.data != NULL ||
                              (problem->lse.data != NULL && problem->lse.dtype == ATTN_F64);
    plan->params.lse_alone = problem->lse.data != NULL && !plan->params.statistics;
    plan->params.whole = attn_problem_is_whole(problem);
    plan->params.index[ATTN_CUDA_CU_Q] = index_of(&problem->cu_q);
    plan->params.index[ATTN_CUDA_CU_K] = index_of(&problem->cu_k);
    plan->params.index[ATTN_CUDA_USED_Q] = index_of(&problem->used_q);
    plan->params.index[ATTN_CUDA_USED_K] = index_of(&problem->used_k);
    plan->params.index[ATTN_CUDA_PAD_K] = index_of(&problem->pad_k);
    if (problem->paged) {
        plan->params.pages = attn_cuda_pages_of(problem, &attn_cuda_kernels[plan->kernel]);
    }
    plan->params.aligned = (attn_cuda_is_aligned(&problem->q) ? ATTN_CUDA_ALIGNED_Q : 0) |
                           (attn_cuda_is_aligned(&problem->k) ? ATTN_CUDA_ALIGNED_K : 0) |
                           (attn_cuda_is_aligned(&problem->v) ? ATTN_CUDA_ALIGNED_V : 0);
    if (attn_cuda_kernels[plan->kernel].single) {
        plan->params.single = single(problem, attn_cuda_kernels[plan->kernel].keys);
    }
    if (problem->dropout.on) {
        plan->params.dropout = attn_cuda_dropout_of(&problem->dropout);
    }
    return attn_cuda_schedule_make(plan, cuda, problem);
}

attn_status attn_cuda_plan_make(attn_cuda_plan *plan, const attn_cuda *cuda,
                                const attn_problem *problem, void *workspace)
{
    enum { ALIGNED = 64 }; /* parts of the workspace; its beginning may be that far off */
    attn_problem turned = *problem;
    attn_rotated rotated;
    TRY(attn_rotated_place(problem, workspace, &rotated));
    if (rotated.bytes > 0) {
        turned.q = rotated.q;
        attn_stand_in(&turned.q);
        attn_normalise_tensor(&turned.q, true);
    }
    /* where O is wanted in two types, the kernel writes the wider one */
    const bool twice = attn_tensor_present(&problem->o_f32),
               narrow = attn_dtype_size(problem->o.dtype) < sizeof(float);
    turned.o = twice && narrow ? problem->o_f32 : problem->o;
    TRY(make(plan, cuda, &turned));
    if (twice) {
        const size_t n = strlen(plan->why);
        (void)snprintf(plan->why + n, sizeof plan->why - n, "; a launch of its own rounds O");
        plan->rounded = narrow ? problem->o : problem->o_f32;
    }
    plan->rotated = rotated;
    plan->own_offset = (rotated.bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
    plan->workspace_bytes += plan->own_offset;
    plan->workspace_bytes += plan->workspace_bytes > 0 ? ALIGNED : 0;
    return ATTN_OK;
}
