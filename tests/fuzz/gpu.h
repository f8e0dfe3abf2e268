/*
 * gpu.h: a fuzzer's calls on pretended GPUs (tests/cuda/fake_driver.h), which plan, size and launch
 * but compute nothing. The driver refuses what is beyond a GPU's limits, and a call that it refuses
 * traps here; so do arguments of a launch that are not finite or lie outside of the workspace.
 *
 * Statuses are those of a CPU for the same arguments, but for what GPUs do not support, and lengths
 * and tables, which they do not read.
 */
#ifndef TESTS_FUZZ_GPU_H
#define TESTS_FUZZ_GPU_H

#include "bytes.h"

/* One of the pretended GPUs, as if it had just been found. */
attn_context *gpu_context(input *in);

/* Plans, sizes and runs the pass. size: the status of a CPU's workspace; run: that of its call, or
 * -1 if it was not called. */
void gpu_forward(input *in, const attn_forward_args *args, attn_status size, int run);
void gpu_backward(input *in, const attn_backward_args *args, attn_status size, int run);

/* A call without a workspace has ended on a GPU. run: as above. unread: it has origins. */
void gpu_called(attn_status status, int run, bool unread);

#endif
