/*
 * plan_plot.h: `attn plan --plot`: traffic against the near memory's size, the roofline with the
 * problem's points, memory against N, on one page drawn by gnuplot.
 */
#ifndef CLI_PLAN_PLOT_H
#define CLI_PLAN_PLOT_H

#include "plan_io_report.h"

#include <stddef.h>

/* Draws into path (.svg or .png); bench_plot_possible tells before. False with a sentence in
 * error. */
bool plan_plot(const plan_io_story *story, const char *title, const char *path, char *error,
               size_t size);

#endif
