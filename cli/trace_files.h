/*
 * trace_files.h: Q, K, V and dO of `attn trace` from files (run_files.h says which).
 */
#ifndef CLI_TRACE_FILES_H
#define CLI_TRACE_FILES_H

#include "problem.h"

/* Specs of files; NULL: not given. */
typedef struct trace_files {
    const char *q, *k, *v, *d_o;
} trace_files;

/* True if files are given. Exits with CLI_USAGE if one of several that belong together is
 * missing. */
bool trace_files_given(const trace_files *files, bool backward);

/* Sets lengths, heads, head dims and dtype (f64 if Q is, else f32) to those of the files. Exits
 * with CLI_USAGE and one sentence if a file is unfit, or does not fit the others. */
void trace_files_shape(const trace_files *files, problem_spec *problem);

/* Writes the numbers of the files into the tensors of the problem. source: the trace_files. */
void trace_files_fill(const void *source, problem_tensors *tensors);

#endif
