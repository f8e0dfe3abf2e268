/*
 * bench_gpu.h: the implementations of GPU 0.
 */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H

#include "bench_device.h"

extern const bench_device bench_gpu;

/* Comes before anything else. Errors: those of attn_context_create. */
attn_status bench_gpu_open(void);

/* From now on calls find K and V in memory, not in the L2 cache: they take turns on copies. */
void bench_gpu_cool(void);

#endif
