/*
 * run.h: what `attn run` did: from run.c to run_report.c.
 */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "errors.h"

#include <attn/attn.h>
#include <stdbool.h>

typedef struct run_result {
    const attn_forward_args *args;
    attn_plan plan;
    double seconds;
    bool checked;
    errors errors;
    errors_limits allowed;
    bool compared;
    const char *refused; /* NULL, or why standard attention could not be run */
    double standard_seconds, standard_workspace;
} run_result;

void run_print_text(const run_result *r);
void run_print_json(const run_result *r);

#endif
