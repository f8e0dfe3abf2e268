/*
 * check_gpu.h: `attn check` on GPUs.
 */
#ifndef CLI_CHECK_GPU_H
#define CLI_CHECK_GPU_H

#include "cli.h"

/* Runs the whole command with --device cuda. Returns an exit status. Each problem is called `runs`
 * times, and at least once for each subset of its outputs; a call may take `limit` seconds. */
int check_gpu(const cli_list *list, int64_t seeds, int64_t runs, int64_t limit, bool json);

#endif
