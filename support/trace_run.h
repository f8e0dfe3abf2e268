/*
 * trace_run.h: the trace of a small problem: its walk over tiles (trace_walk.h) told step by step,
 * forward, in parts with their merge, and backward; at the end the distances from the library.
 */
#ifndef SUPPORT_TRACE_RUN_H
#define SUPPORT_TRACE_RUN_H

#include "problem.h"
#include "trace_walk.h"

#include <stdio.h>

enum { TRACE_MOST_ROWS = 64, TRACE_MOST_COLUMNS = 32, TRACE_MOST_PARTS = 16 };

typedef struct trace_choice {
    int64_t rows, keys; /* of a tile */
    int64_t split;      /* parts of the keys */
    int64_t head;
    /* writes other numbers into the tensors; NULL: the problem's inputs stay */
    void (*fill)(const void *source, problem_tensors *tensors);
    const void *source;
} trace_choice;

typedef struct trace_report {
    const trace_head *head;
    FILE *to;
} trace_report;

/* A listener: how steps are told. */
typedef struct trace_teller {
    void (*heading)(const trace_report *report, const char *text);
    void (*tile)(void *report, const trace_tile *tile);
    void (*grad_tile)(void *report, const trace_grad_tile *tile);
    void (*sums)(const trace_report *report, const trace_sums *sums); /* results over some keys */
    void (*weights)(const trace_report *report, const double *weight, int parts);
    void (*grads)(const trace_report *report, const trace_grads *grads);
    /* the largest distance between the trace and a result of the library */
    void (*distance)(const trace_report *report, const char *what, double distance);
} trace_teller;

/* Tells each step as a JSON object on a line of its own (trace_json.c). */
extern const trace_teller trace_json;

/* Returns the reason why a problem has no trace, or NULL. */
const char *trace_refuses(const trace_choice *choice, const problem_spec *problem);

/* Runs a trace that is not refused. Errors: out of memory, and those of the library. */
attn_status trace_run(const trace_choice *choice, const problem_spec *problem,
                      const trace_teller *teller, FILE *to);

#endif
