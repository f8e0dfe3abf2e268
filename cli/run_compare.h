/*
 * run_compare.h: `attn run --compare`.
 */
#ifndef CLI_RUN_COMPARE_H
#define CLI_RUN_COMPARE_H

#include "run_report.h"

#include <stddef.h>

/* Runs standard attention on the same tensors, in f32, into memory of its own, and times ours in
 * the same way; o has o_bytes. Forward only. */
attn_status run_compare(const attn_forward_args *args, size_t o_bytes, attn_context *context,
                        run_result *result);

#endif
