/*
 * softmax.c: the online softmax over one row of scores, block after block: the library's walk, and
 * the published form that keeps the maximum of the block at hand, in f32 as kernels compute.
 */
#include "page.h"
#include "trace_run.h"

#include <math.h>
#include <stdlib.h>

/* A row of scores as a head of one query. */
static trace_head head_of(const double *scores, const double *values, int count)
{
    return (trace_head){.nq = 1, .nk = count, .d = 1, .dv = 1, .scores = scores, .v = values};
}

/* Writes each step of the right form. */
const char *PAGE_EXPORT(page_softmax)(const double *scores, const double *values, int count,
                                      int block)
{
    const trace_head head = head_of(scores, values, count);
    const trace_report report = {&head, page_open()};
    const trace_listener listener = {(void *)&report, trace_json.tile, NULL};
    double o, lse;
    const trace_sums sums = {&o, &lse};
    if (!trace_forward(&head, 1, block, 0, count, &listener, &sums)) {
        return page_error("out of memory");
    }
    trace_json.sums(&report, &sums);
    return page_text();
}

/* Writes the steps with the flaw: the maximum of a block replaces that of all blocks so far, so
 * alpha may be any power of e. */
const char *PAGE_EXPORT(page_softmax_flawed)(const double *scores, const double *values, int count,
                                             int block)
{
    const trace_head head = head_of(scores, values, count);
    const trace_report report = {&head, page_open()};
    float maximum = -INFINITY, sum = 0, o = 0;
    for (int key = 0; key < count; key += block) {
        const int keys = count - key < block ? count - key : block;
        float highest = -INFINITY, fresh = 0, part = 0;
        for (int j = key; j < key + keys; j++) {
            highest = fmaxf(highest, (float)scores[j]);
        }
        for (int j = key; j < key + keys; j++) {
            const float p = expf((float)scores[j] - highest);
            fresh += p, part += p * (float)values[j];
        }
        const float alpha = expf(maximum - highest), before = o;
        sum = sum * alpha + fresh, o = o * alpha + part, maximum = highest;
        const double x[] = {(double)highest, (double)alpha, (double)sum, (double)before, (double)o};
        const trace_tile tile = {.place = {0, 1, key, keys, TRACE_FULL},
                                 .scores = scores + key,
                                 .tile_maximum = &x[0],
                                 .maximum = &x[0],
                                 .alpha = &x[1],
                                 .sum = &x[2],
                                 .before = &x[3],
                                 .after = &x[4]};
        trace_json.tile((void *)&report, &tile);
    }
    double result = (double)(o / sum), lse = (double)(maximum + logf(sum));
    trace_json.sums(&report, &(trace_sums){&result, &lse});
    return page_text();
}
