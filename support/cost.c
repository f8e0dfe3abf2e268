/*
 * cost.c: a problem's operations, and the context to run it on.
 */
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

/* Keys in the window of the row at position `at`. */
static double keys_in_window(const problem_spec *problem, int64_t at, int64_t nk)
{
    int64_t lo = 0, hi = nk;
    int64_t right = problem->causal ? 0 : problem->window_right;
    if (problem->window_left >= 0 && problem->window_left < at) {
        lo = at - problem->window_left;
    }
    if (right >= 0 && right < nk - 1 - at) {
        hi = at + right + 1;
    }
    return hi > lo ? (double)(hi - lo) : 0;
}

static double scores(const problem_spec *problem, int64_t b, int64_t nq, int64_t nk)
{
    const bool placed = problem->causal && (problem->q_origins > 0 || problem->k_origins > 0);
    if (!problem->has_window && !placed) {
        return (double)nq * (double)nk * (problem->causal ? 0.5 : 1.0);
    }
    double sum = 0;
    for (int64_t i = 0; i < nq; i++) {
        sum += keys_in_window(problem, i + diagonal(problem, b, nq, nk), nk);
    }
    return sum;
}

double problem_flops(const problem_spec *problem)
{
    double sum = 0;
    bool varied = problem->has_lens || problem->has_leftpad || problem->has_used_q ||
                  problem->has_used_k || problem->q_origins > 1 || problem->k_origins > 1;
    for (int64_t b = 0; b < (varied ? problem->b : 1); b++) {
        int64_t nq = problem->has_used_q ? problem->used_q[b]
                     : problem->has_lens ? problem->lens_q[b]
                                         : problem->nq;
        int64_t nk = problem->has_used_k ? problem->used_k[b]
                     : problem->has_lens ? problem->lens_k[b]
                                         : problem->nk;
        nk -= problem->has_leftpad ? problem->leftpad_k[b] : 0;
        sum += scores(problem, b, nq, nk) * (varied ? 1.0 : (double)problem->b);
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

double problem_key_bytes(const problem_spec *problem)
{
    double keys = 0;
    for (int64_t b = 0; b < problem->b; b++) {
        const bool listed = b < PROBLEM_MAX_SEQS;
        keys += (double)(problem->has_used_k && listed ? problem->used_k[b] : problem->nk) -
                (double)(problem->has_leftpad && listed ? problem->leftpad_k[b] : 0);
    }
    return keys * (double)problem->hkv * (double)(problem->d + problem->dv) *
           (double)attn_dtype_size(problem->dtype);
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
