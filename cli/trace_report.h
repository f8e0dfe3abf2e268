/*
 * trace_report.h: a trace in words with grids of numbers.
 */
#ifndef CLI_TRACE_REPORT_H
#define CLI_TRACE_REPORT_H

#include "trace_run.h"

/* Writes to the standard output. */
extern const trace_teller trace_words;

#endif
