/*
 * cost.c: a problem's operations, and the context to run it on.
 */
#include "codes.h"
#include "problem.h"

#include <string.h>

/* One of the origins of sequence b. */
static int64_t origin(const int64_t *origins, int32_t count, int64_t b)
{
    return count == 0 ? 0 : origins[count == 1 ? 0 : b];
}

/* off of C3 in sequence b, for lengths nq and nk. */
static int64_t diagonal(const problem_spec *problem, int64_t b, int64_t nq, int64_t nk)
{
    if (problem->q_origins > 0 || problem->k_origins > 0) {
        return origin(problem->q_origin, problem->q_origins, b) -
               origin(problem->k_origin, problem->k_origins, b);
    }
    return problem->top_left ? 0 : nk - nq;
}

static int64_t length(const int64_t *used, bool has_used, const int64_t *lens, bool has_lens,
                      int64_t whole, int64_t b)
{
    return has_used ? used[b] : has_lens ? lens[b] : whole;
}

problem_band problem_band_of(const problem_spec *problem, int64_t b)
{
    problem_band band = {
        .nq = length(problem->used_q, problem->has_used_q, problem->lens_q, problem->has_lens,
                     problem->nq, b),
        .nk = length(problem->used_k, problem->has_used_k, problem->lens_k, problem->has_lens,
                     problem->nk, b),
        .low = -PROBLEM_FAR,
        .high = PROBLEM_FAR,
    };
    band.nk -= problem->has_leftpad ? problem->leftpad_k[b] : 0;
    const int64_t off = diagonal(problem, b, band.nq, band.nk),
                  left = problem->has_window ? problem->window_left : -1,
                  right = problem->causal       ? 0
                          : problem->has_window ? problem->window_right
                                                : -1;
    if (left >= 0 && left < PROBLEM_FAR) {
        band.low = off - left;
    }
    if (right >= 0 && right < PROBLEM_FAR) {
        band.high = off + right + 1;
    }
    return band;
}

bool problem_is_ragged(const problem_spec *problem)
{
    return problem->has_lens || problem->has_leftpad || problem->has_used_q ||
           problem->has_used_k || problem->q_origins > 1 || problem->k_origins > 1;
}

static double scores(const problem_spec *problem, const problem_band *band)
{
    const bool placed = problem->causal && (problem->q_origins > 0 || problem->k_origins > 0);
    if (!problem->has_window && !placed) {
        return (double)band->nq * (double)band->nk * (problem->causal ? 0.5 : 1.0);
    }
    double sum = 0;
    for (int64_t i = 0; i < band->nq; i++) {
        const int64_t lo = i + band->low > 0 ? i + band->low : 0,
                      hi = i + band->high < band->nk ? i + band->high : band->nk;
        sum += hi > lo ? (double)(hi - lo) : 0;
    }
    return sum;
}

double problem_flops(const problem_spec *problem)
{
    double sum = 0;
    const bool ragged = problem_is_ragged(problem);
    for (int64_t b = 0; b < (ragged ? problem->b : 1); b++) {
        const problem_band band = problem_band_of(problem, b);
        sum += scores(problem, &band) * (ragged ? 1.0 : (double)problem->b);
    }
    double width = problem->pass != PASS_BACKWARD ? (double)(problem->d + problem->dv) : 0;
    width += problem->pass != PASS_FORWARD ? 3 * (double)problem->d + 2 * (double)problem->dv : 0;
    return 2.0 * width * (double)problem->hq * sum;
}

bool problem_is_decode(const problem_spec *problem)
{
    return problem->pass == PASS_FORWARD && !problem->has_lens && problem->hkv > 0 &&
           problem->nq * (problem->hq / problem->hkv) <= 64;
}

double problem_key_bytes(const problem_spec *problem, bool factors)
{
    double keys = 0;
    for (int64_t b = 0; b < problem->b; b++) {
        const bool listed = b < PROBLEM_MAX_SEQS;
        keys += (double)(problem->has_used_k && listed ? problem->used_k[b] : problem->nk) -
                (double)(problem->has_leftpad && listed ? problem->leftpad_k[b] : 0);
    }
    const int32_t dtype = problem->kv_dtype != 0 ? problem->kv_dtype : problem->dtype;
    const double columns = (double)(problem->d + problem->dv) / (double)codes_columns(dtype);
    const double groups =
        problem->kv_group > 0 ? (double)(problem->d + problem->dv) / (double)problem->kv_group : 2;
    const double each =
        factors && strcmp(problem->kv_scale, "bkh") == 0 ? groups * (problem->kv_shift ? 2 : 1) : 0;
    return keys * (double)problem->hkv *
           (columns * (double)attn_dtype_size(dtype) +
            each * (double)attn_dtype_size(problem->kv_scale_dtype));
}

attn_status problem_context(const problem_spec *problem, attn_context **context)
{
    attn_context_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.threads = problem->threads;
    config.cpu = problem->cpu[0] != '\0' ? problem->cpu : NULL;
    return attn_context_create(&config, context);
}
