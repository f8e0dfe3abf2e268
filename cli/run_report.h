/*
 * run_report.h: the results of `attn run`.
 */
#ifndef CLI_RUN_REPORT_H
#define CLI_RUN_REPORT_H

#include "errors.h"
#include "grad_errors.h"

#include <attn/attn.h>
#include <stdbool.h>

typedef struct run_result {
    const attn_forward_args *args;
    attn_plan plan;
    double seconds;
    const attn_backward_args *grad; /* NULL: forward only */
    attn_plan grad_plan;
    double grad_seconds;
    bool checked;
    error_stats errors;
    grad_errors grad_errors; /* 0 where there is none */
    errors_limits allowed;
    bool compared;
    const char *refused; /* NULL, or the reason why standard attention did not run */
    double standard_seconds, standard_workspace;
} run_result;

void run_print_text(const run_result *result);
void run_print_json(const run_result *result);

#endif
