/*
 * launch.h: launches of kernels.cu on the default stream of GPU 0.
 */
#ifndef TRAIN_GPT_GPU_LAUNCH_H
#define TRAIN_GPT_GPU_LAUNCH_H

#include "device.h"
#include "gpu.h"
#include "kernels.h"

enum {
#define KERNEL_INDEX(name, args) KERNEL_##name,
    GPT_KERNELS(KERNEL_INDEX) KERNELS
#undef KERNEL_INDEX
};

/* Makes the kernels ready, after gpu_open. */
void launch_load(void);

void launch(int kernel, gpu_grid grid, const void *args);

/* Blocks of GPT_THREADS for `count` threads. */
gpu_grid launch_threads(int64_t count);

/* Room for the results of some blocks, until the next call of it. */
void *launch_scratch(uint64_t bytes);

/* Products of the heads of `sequences`: all but parts and partial are set. */
void launch_products(int sequences, matmul_args args);

/* standard_cuda.c: materialised attention without dropout. */
uint64_t cuda_standard_scratch_bytes(attention_shape shape, double dropout_p);
void cuda_standard_forward(const standard_heads *heads, real *o);
void cuda_standard_backward(const standard_heads *heads, const real *d_o, real *d_qkv);

#endif
