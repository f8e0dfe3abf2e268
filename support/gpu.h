/*
 * gpu.h: NVIDIA GPUs for the program, the tests and the example train_gpt, through the driver found
 * at run time: their list, memory, streams, events, graphs and kernels. The library's own door to
 * the driver, src/cuda/driver.h, leaves the caller's state alone; this one does not. Once gpu_open
 * has succeeded, any failure ends the process with a sentence and exit status 3: a GPU that half
 * works says nothing.
 */
#ifndef SUPPORT_GPU_H
#define SUPPORT_GPU_H

#include <stddef.h>

typedef struct gpu_properties {
    char name[96];
    int major, minor; /* compute capability */
    int multiprocessors, l2_bytes;
    size_t memory_bytes;
} gpu_properties;

/* Number of GPUs; 0 without a driver, too. *driver = its version of CUDA: 13000 is 13.0. */
int gpu_count(int *driver);

/* ordinal: below gpu_count(). */
void gpu_describe(int ordinal, gpu_properties *properties);

/* Makes GPU 0's primary context current. Returns NULL or the reason why not, a static string. */
const char *gpu_open(void);

/* Names the process' current activity, for the sentence of a failure. The string is kept, not
 * copied. */
void gpu_task(const char *what);

void *gpu_alloc(size_t bytes);
void gpu_free(void *p);
void gpu_put(void *to, const void *from, size_t bytes);
void gpu_get(void *to, const void *from, size_t bytes);
size_t gpu_free_bytes(void);

/* Streams do not wait for the default one. gpu_wait waits for all of them. */
void *gpu_stream(void);
void gpu_wait(void);

/* Events: gpu_seconds waits for `end` and returns the GPU's time between the two. */
void *gpu_event(void);
void gpu_record(void *event, void *stream);
double gpu_seconds(void *start, void *end);

/* Graphs: work enqueued on a stream between gpu_capture and gpu_captured does not run; gpu_captured
 * returns it as a graph. */
void gpu_capture(void *stream);
void *gpu_captured(void *stream);
void gpu_launch(void *graph, void *stream);
void gpu_graph_free(void *graph);

/* Work on the default stream, enqueued: a copy within the GPU's memory, one word everywhere (bytes:
 * a multiple of 4), zeros, and a kernel. gpu_image makes kernels of a fatbin ready for
 * gpu_kernel. */
void gpu_move(void *to, const void *from, size_t bytes);
void gpu_fill(void *p, unsigned word, size_t bytes);
void gpu_clear(void *p, size_t bytes);
void *gpu_image(const void *fatbin);
void *gpu_kernel(void *image, const char *name);

typedef struct gpu_grid {
    unsigned x, y, z, threads;
} gpu_grid;

/* params: the kernel's only argument, copied. */
void gpu_run(void *kernel, gpu_grid grid, const void *params);

#endif
