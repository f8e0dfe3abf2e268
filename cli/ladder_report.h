/*
 * ladder_report.h: what `attn ladder` found, in words, as JSON, and as a picture.
 */
#ifndef CLI_LADDER_REPORT_H
#define CLI_LADDER_REPORT_H

#include "ladder_run.h"

void ladder_tell_text(const problem_spec *problem, const ladder_result results[LADDER_STEPS]);
void ladder_tell_json(const problem_spec *problem, const ladder_result results[LADDER_STEPS]);
void ladder_flaws_text(const ladder_flaw flaws[LADDER_FLAWS]);
void ladder_flaws_json(const ladder_flaw flaws[LADDER_FLAWS]);

/* Draws bars of time and of bytes through gnuplot into path (.svg or .png). False with a sentence
 * in error. */
bool ladder_plot_possible(const char *path, char *error, size_t size);
bool ladder_plot(const problem_spec *problem, const ladder_result results[LADDER_STEPS],
                 const char *path, char *error, size_t size);

#endif
