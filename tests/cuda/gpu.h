/*
 * gpu.h: memory of a GPU for the tests of src/cuda, by way of the driver found at run time. Every failure ends the
 * program with a sentence: a test on a GPU that half works says nothing.
 */
#ifndef TESTS_CUDA_GPU_H
#define TESTS_CUDA_GPU_H

#include <attn/attn.h>

/* Makes GPU 0's primary context current. */
void gpu_open(void);

void *gpu_alloc(size_t bytes);
void gpu_free(void *p);
void gpu_put(void *to, const void *from, size_t bytes);
void gpu_get(void *to, const void *from, size_t bytes);
void *gpu_stream(void);
void gpu_wait(void);

/* A copy in the GPU's memory of everything between a tensor's first and last element, gaps included; `margin` bytes of
 * 0xFF on both sides. `there` is the view of it. */
typedef struct gpu_copy {
    attn_tensor here, there;
    char *first; /* of the host's bytes */
    char *memory;
    size_t bytes;
} gpu_copy;

gpu_copy gpu_copy_tensor(const attn_tensor *t);

/* Back to the host. */
void gpu_copy_back(const gpu_copy *c);

/* Whether the margins still hold 0xFF. */
int gpu_margins_intact(const gpu_copy *c);
void gpu_copy_free(gpu_copy *c);

#endif
