/*
 * trace_report.h: a trace in words with grids of numbers, or as one JSON object a step.
 */
#ifndef CLI_TRACE_REPORT_H
#define CLI_TRACE_REPORT_H

#include "trace_walk.h"

typedef struct trace_report {
    const trace_head *head;
    bool json;
} trace_report;

/* Listener's functions; user: a trace_report. */
void trace_tell_tile(void *user, const trace_tile *tile);
void trace_tell_grad_tile(void *user, const trace_grad_tile *tile);

/* Between them: a heading; the results of some keys; the weights of parts; gradients; the largest
 * distance from float64 attention in one piece. */
void trace_tell_heading(const trace_report *report, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void trace_tell_sums(const trace_report *report, const trace_sums *sums);
void trace_tell_weights(const trace_report *report, const double *weight, int parts);
void trace_tell_grads(const trace_report *report, const trace_grads *grads);
void trace_tell_distance(const trace_report *report, const char *what, double distance);

#endif
