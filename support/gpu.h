/*
 * gpu.h: NVIDIA GPUs for the program and the tests, by way of the driver found at run time: which
 * there are, their memory, streams, events and graphs. Not the library's own door to the driver
 * (src/cuda/driver.h), which leaves the caller's state alone. Once gpu_open has succeeded, any
 * failure ends the process with a sentence and exit status 3: a GPU that half works says nothing.
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

/* The number of GPUs; 0 where there is no driver either. *driver = the version of CUDA it is for:
 * 13000 is 13.0. */
int gpu_count(int *driver);

/* ordinal: below gpu_count(). */
void gpu_describe(int ordinal, gpu_properties *properties);

/* Makes GPU 0's primary context current. NULL, or why that cannot be done. Static string. */
const char *gpu_open(void);

/* What the process is at, for the sentence of a failure; it is kept, not copied. */
void gpu_task(const char *what);

void *gpu_alloc(size_t bytes);
void gpu_free(void *p);
void gpu_put(void *to, const void *from, size_t bytes);
void gpu_get(void *to, const void *from, size_t bytes);

/* Streams that do not wait for the default one. gpu_wait waits for all of them. */
void *gpu_stream(void);
void gpu_wait(void);

/* Events: gpu_seconds waits for `end` and gives the time of the GPU between the two. */
void *gpu_event(void);
void gpu_record(void *event, void *stream);
double gpu_seconds(void *start, void *end);

/* Graphs: what is enqueued on a stream between gpu_capture and gpu_captured does not run, but
 * becomes the graph that gpu_captured returns. */
void gpu_capture(void *stream);
void *gpu_captured(void *stream);
void gpu_launch(void *graph, void *stream);
void gpu_graph_free(void *graph);

#endif
