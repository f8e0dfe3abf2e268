/*
 * steps.c: a problem's steps from products to scores, as forward_sm90's kernels take them.
 */
#include "core/mask.h"
#include "cuda/forward/forward.h"

#include <float.h>
#include <math.h>

#define LOG2_E 1.4426950408889634

bool attn_cuda_has_steps(const attn_problem *problem)
{
    return problem->mask.data || problem->bias.data || problem->alibi.data ||
           problem->softcap > 0 || !(problem->scale * LOG2_E >= (double)FLT_MIN);
}

/* True if kernels can copy rows of scores 16 bytes at a time. */
static bool is_copied(const attn_tensor *tensor)
{
    return attn_cuda_is_aligned(tensor) && tensor->shape[3] > 1;
}

bool attn_cuda_copies_scores(const attn_cuda_plan *plan)
{
    const attn_cuda_family family = attn_cuda_kernels[plan->kernel].family;
    return family == ATTN_CUDA_SM90_MASK || family == ATTN_CUDA_SM90_BIAS ||
           family == ATTN_CUDA_SM90_STEPS || family == ATTN_CUDA_SM90_DROPOUT_STEPS;
}

/* True for scales that leave all coefficients of scores_sm90.cuh within f32. */
static bool is_usual(double scale)
{
    return scale >= 1e-4 && scale <= 1e4;
}

bool attn_cuda_folds_scale(const attn_problem *problem)
{
    return problem->mask.data && !problem->bias.data && !problem->alibi.data &&
           problem->softcap <= 0 && is_usual(problem->scale);
}

int32_t attn_cuda_scores_of(const attn_problem *problem)
{
    const bool narrow = problem->d <= 128 && problem->dv <= 128,
               fits = problem->q.dtype != ATTN_F32 && narrow && !problem->paged,
               cap = problem->softcap > 0, slopes = problem->alibi.data != NULL,
               alone = problem->q.dtype != ATTN_F32 && !problem->mask.data && !problem->bias.data &&
                       cap != slopes && is_usual(problem->scale) && (narrow || cap);
    if (!attn_cuda_has_steps(problem)) {
        return ATTN_CUDA_SCALED;
    }
    if (problem->dropout.on) {
        return ATTN_CUDA_STEPPED;
    }
    if (fits && attn_cuda_folds_scale(problem) &&
        (is_copied(&problem->mask) || attn_axis_step(&problem->mask, 2) == 0)) {
        return ATTN_CUDA_MASKED;
    }
    if (fits && problem->bias.data && !problem->mask.data && !cap && !slopes &&
        is_usual(problem->scale) && problem->bias.dtype == problem->q.dtype &&
        is_copied(&problem->bias)) {
        return ATTN_CUDA_BIASED;
    }
    return alone && slopes                                        ? ATTN_CUDA_SLOPED
           : alone && is_usual(problem->softcap / problem->scale) ? ATTN_CUDA_CAPPED
                                                                  : ATTN_CUDA_STEPPED;
}

bool attn_cuda_suits_whole(const attn_problem *problem)
{
    enum { NARROW = 64, MANY = 1024 };
    const attn_tensor *mask = &problem->mask;
    const int32_t scores = attn_cuda_scores_of(problem);
    const bool wide = problem->d > NARROW || problem->dv > NARROW,
               few = problem->keys < MANY || attn_mask_differs(problem);
    return attn_problem_is_whole(problem) && !problem->paged &&
           (scores == ATTN_CUDA_SCALED || wide || few) &&
           (scores != ATTN_CUDA_MASKED ||
            (attn_axis_step(mask, 2) != 0 && (mask->shape[0] != 1 || mask->shape[1] == 1)));
}

static void set_softcap(attn_cuda_steps *steps, const attn_problem *problem)
{
    /* tanh(z) / z in z^2 for |z| <= 5/8, minimax: relative error 2^-23.1 */
    static const double near[] = {0.999999893132, -0.333319542501, 0.133045259971, -0.0518218666639,
                                  0.0150509451369};
    const double scale = problem->scale, cap = problem->softcap;
    for (int i = 0; i < 5; i++) {
        steps->near[i] = (float)(scale * near[i]);
        steps->cap[i] = (float)(LOG2_E * scale * near[i] * pow(scale / cap, 2 * i));
    }
    steps->cap_most = (float)(0.625 * cap / scale * (0.625 * cap / scale));
    steps->cap_far = (float)(LOG2_E * cap);
    steps->near_scale = (float)(scale / cap);
    steps->near_most = (float)(0.625 * cap / fabs(scale)); /* infinite for a scale of 0 */
    steps->far_scale = (float)(fabs(scale) / cap * (2 * LOG2_E));
    steps->far_cap = (float)copysign(cap, scale);
}

attn_cuda_steps attn_cuda_steps_of(const attn_problem *problem)
{
    attn_cuda_steps steps = {.scale = (float)problem->scale,
                             .slope_factor = (float)(problem->scale * LOG2_E)};
    const attn_tensor *bias = &problem->bias, *mask = &problem->mask;
    steps.softcap = problem->softcap > 0, steps.alibi = problem->alibi.data != NULL,
    steps.mask = mask->data != NULL;
    steps.bias_factor = steps.softcap ? 1 : steps.scale;
    steps.alibi_factor = bias->data ? 1 : steps.bias_factor;
    steps.scaled = attn_cuda_has_steps(problem) && !steps.softcap && !bias->data && !steps.alibi &&
                   !attn_cuda_folds_scale(problem);
    steps.masks = steps.mask || bias->data;
    if (steps.softcap) {
        set_softcap(&steps, problem);
    }
    if (bias->data) {
        steps.bias = !is_copied(bias) || bias->dtype == ATTN_F64 ? ATTN_CUDA_GATHERED
                     : bias->dtype == ATTN_F32                   ? ATTN_CUDA_COPIED_4
                                                                 : ATTN_CUDA_COPIED_2;
        steps.bias_row = attn_axis_step(bias, 2), steps.bias_step = attn_axis_step(bias, 3);
    }
    if (steps.mask) {
        steps.mask_copied = is_copied(mask);
        steps.mask_row = attn_axis_step(mask, 2), steps.mask_step = attn_axis_step(mask, 3);
    }
    return steps;
}

const char *attn_cuda_steps_lack(const attn_problem *problem)
{
    const double least = 1e-30,
                 most = 1e30; /* far from the ends of f32: scale, softcap, quotient */
    if (problem->softcap > 0 &&
        !(problem->softcap > least && problem->softcap < most && fabs(problem->scale) < most &&
          fabs(problem->scale) / problem->softcap < most)) {
        return "softcap or scale are beyond 1e-30 to 1e30";
    }
    return problem->bias.data && problem->q.dtype == ATTN_F32 &&
                   (problem->d > 64 || problem->dv > 64)
               ? "f32 beyond d = 64 leaves no shared memory for a bias"
               : NULL;
}

attn_cuda_dropout attn_cuda_dropout_of(const attn_dropout *dropout)
{
    attn_cuda_dropout made = {.either = dropout->limit <= 0x8000 ? UINT32_MAX : 0};
    made.carry = ((made.either != 0 ? 0x8000u : 0x10000u) - dropout->limit) * 0x10001u;
    attn_philox_keys(dropout, made.keys);
    return made;
}
