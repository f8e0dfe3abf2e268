/*
 * bench_gpu.h: the implementations of GPU 0.
 */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H

#include "bench_device.h"

extern const bench_device bench_gpu;

/* Comes before anything else. Errors: those of attn_context_create. */
attn_status bench_gpu_open(void);

#endif
