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
static int64_t diagonal(const problem *p, int64_t b, int64_t nq, int64_t nk)
{
    if (p->q_origins > 0 || p->k_origins > 0) {
        return origin(p->q_origin, p->q_origins, b) - origin(p->k_origin, p->k_origins, b);
    }
    return p->top_left ? 0 : nk - nq;
}

/* Keys in the window of the row at position `at`. */
static double keys_in_window(const problem *p, int64_t at, int64_t nk)
{
    int64_t lo = 0, hi = nk;
    int64_t right = p->causal ? 0 : p->window_right;
    if (p->window_left >= 0 && p->window_left < at) {
        lo = at - p->window_left;
    }
    if (right >= 0 && right < nk - 1 - at) {
        hi = at + right + 1;
    }
    return hi > lo ? (double)(hi - lo) : 0;
}

static double scores(const problem *p, int64_t b, int64_t nq, int64_t nk)
{
    const bool placed = p->causal && (p->q_origins > 0 || p->k_origins > 0);
    if (!p->has_window && !placed) {
        return (double)nq * (double)nk * (p->causal ? 0.5 : 1.0);
    }
    double sum = 0;
    for (int64_t i = 0; i < nq; i++) {
        sum += keys_in_window(p, i + diagonal(p, b, nq, nk), nk);
    }
    return sum;
}

double problem_flops(const problem *p)
{
    double sum = 0;
    bool varied = p->has_lens || p->has_leftpad || p->has_used_q || p->has_used_k ||
                  p->q_origins > 1 || p->k_origins > 1;
    for (int64_t b = 0; b < (varied ? p->b : 1); b++) {
        int64_t nq = p->has_used_q ? p->used_q[b] : p->has_lens ? p->lens_q[b] : p->nq;
        int64_t nk = p->has_used_k ? p->used_k[b] : p->has_lens ? p->lens_k[b] : p->nk;
        nk -= p->has_leftpad ? p->leftpad_k[b] : 0;
        sum += scores(p, b, nq, nk) * (varied ? 1.0 : (double)p->b);
    }
    double width = p->pass != PASS_BACKWARD ? (double)(p->d + p->dv) : 0;
    width += p->pass != PASS_FORWARD ? 3 * (double)p->d + 2 * (double)p->dv : 0;
    return 2.0 * width * (double)p->hq * sum;
}

attn_status problem_context(const problem *p, attn_context **context)
{
    attn_context_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.threads = p->threads;
    config.cpu = p->cpu[0] != '\0' ? p->cpu : NULL;
    return attn_context_create(&config, context);
}
