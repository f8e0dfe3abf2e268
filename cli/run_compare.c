/*
 * run_compare.c: see run_compare.h.
 */
#include "run_compare.h"
#include "cli.h"
#include "progress.h"
#include "standard.h"
#include "stats.h"

#include <stdlib.h>

/* Median seconds of calls after the first: up to five, within about half a second. context == NULL:
 * standard attention. */
static attn_status time_calls(const attn_forward_args *args, attn_context *context, int threads,
                              float *scores, double *median)
{
    enum { CALLS = 6 };
    double seconds[CALLS], total = 0;
    int count = 0;
    while (count < 2 || (count < CALLS && total < 0.5)) {
        attn_status status = ATTN_OK;
        double start = stats_now();
        if (context != NULL) {
            status = attn_forward(context, args);
        } else {
            standard_forward(args, threads, scores);
        }
        seconds[count] = stats_now() - start;
        total += seconds[count++];
        if (status != ATTN_OK) {
            return status;
        }
    }
    *median = stats_of(seconds + 1, count - 1).median;
    return ATTN_OK;
}

attn_status run_compare(const attn_forward_args *args, size_t o_bytes, attn_context *context,
                        run_result *result)
{
    attn_forward_args forward = *args, own;
    void *scores = NULL, *copies = NULL;
    attn_status status = ATTN_OK;
    result->compared = true;
    forward.lse.data = forward.row_max.data = forward.o_f32.data = NULL;
    result->standard_workspace = standard_workspace(&forward);
    result->refused = standard_refuses(&forward);
    if (result->standard_workspace > cli_free_memory()) {
        result->refused = "its matrix of scores does not fit into memory";
    }
    cli_watch_start("computing standard attention");
    if (result->refused == NULL) {
        scores = malloc((size_t)result->standard_workspace);
        forward.o.data = malloc(o_bytes + 1); /* O itself is done */
        result->refused = "there is no memory for it";
        if (scores != NULL && forward.o.data != NULL && standard_adopt(&forward, &own, &copies)) {
            result->refused = NULL;
            time_calls(&own, NULL, result->plan.threads, scores, &result->standard_seconds);
            status = time_calls(&forward, context, result->plan.threads, NULL, &result->seconds);
        }
        free(forward.o.data);
    }
    cli_watch_stop();
    free(copies);
    free(scores);
    return status;
}
