/*
 * gpu.c: see gpu.h. Declarations follow the driver API of CUDA 12 (cuda.h), which is stable.
 */
#include "gpu.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAILED = 3, STREAM_NON_BLOCKING = 1, CAPTURE_THREAD_LOCAL = 1 };
enum {
    MULTIPROCESSORS = 16,
    L2_BYTES = 38,
    CAPABILITY_MAJOR = 75,
    CAPABILITY_MINOR = 76
}; /* CU_DEVICE_ATTRIBUTE_... */

typedef unsigned long long device_pointer;

/* One line per entry point: name, exported symbol, arguments. */
#define ENTRIES(X)                                                                                 \
    X(init, "cuInit", (unsigned flags))                                                            \
    X(driver_version, "cuDriverGetVersion", (int *version))                                        \
    X(error_string, "cuGetErrorString", (int error, const char **sentence))                        \
    X(device_count, "cuDeviceGetCount", (int *count))                                              \
    X(device_get, "cuDeviceGet", (int *device, int ordinal))                                       \
    X(device_name, "cuDeviceGetName", (char *name, int size, int device))                          \
    X(device_memory, "cuDeviceTotalMem_v2", (size_t * bytes, int device))                          \
    X(device_attribute, "cuDeviceGetAttribute", (int *value, int what, int device))                \
    X(primary_retain, "cuDevicePrimaryCtxRetain", (void **context, int device))                    \
    X(set_current, "cuCtxSetCurrent", (void *context))                                             \
    X(synchronize, "cuCtxSynchronize", (void))                                                     \
    X(alloc, "cuMemAlloc_v2", (device_pointer * p, size_t bytes))                                  \
    X(free, "cuMemFree_v2", (device_pointer p))                                                    \
    X(put, "cuMemcpyHtoD_v2", (device_pointer to, const void *from, size_t bytes))                 \
    X(get, "cuMemcpyDtoH_v2", (void *to, device_pointer from, size_t bytes))                       \
    X(stream_create, "cuStreamCreate", (void **stream, unsigned flags))                            \
    X(event_create, "cuEventCreate", (void **event, unsigned flags))                               \
    X(event_record, "cuEventRecord", (void *event, void *stream))                                  \
    X(event_wait, "cuEventSynchronize", (void *event))                                             \
    X(event_elapsed, "cuEventElapsedTime", (float *milliseconds, void *start, void *end))          \
    X(capture_start, "cuStreamBeginCapture_v2", (void *stream, int mode))                          \
    X(capture_end, "cuStreamEndCapture", (void *stream, void **graph))                             \
    X(graph_instantiate, "cuGraphInstantiateWithFlags",                                            \
      (void **exec, void *graph, unsigned long long flags))                                        \
    X(graph_free, "cuGraphDestroy", (void *graph))                                                 \
    X(graph_launch, "cuGraphLaunch", (void *exec, void *stream))                                   \
    X(exec_free, "cuGraphExecDestroy", (void *exec))                                               \
    X(memory_info, "cuMemGetInfo_v2", (size_t * free, size_t * total))                             \
    X(copy, "cuMemcpyDtoDAsync_v2",                                                                \
      (device_pointer to, device_pointer from, size_t bytes, void *stream))                        \
    X(set_words, "cuMemsetD32Async",                                                               \
      (device_pointer p, unsigned value, size_t count, void *stream))                              \
    X(library_load, "cuLibraryLoadData",                                                           \
      (void **library, const void *image, void *jit_names, void **jit_values, unsigned jit_count,  \
       void *names, void **values, unsigned count))                                                \
    X(library_kernel, "cuLibraryGetKernel", (void **kernel, void *library, const char *name))      \
    X(kernel_function, "cuKernelGetFunction", (void **function, void *kernel))                     \
    X(launch, "cuLaunchKernel",                                                                    \
      (void *function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y, \
       unsigned threads_z, unsigned shared_bytes, void *stream, void **params, void **extra))

static struct {
#define MEMBER(name, symbol, args) int(*name) args;
    ENTRIES(MEMBER)
} cu;

static const char *task = "";

void gpu_task(const char *what)
{
    task = what;
}

static void check(int result, const char *what)
{
    if (result != 0) {
        const char *sentence = "unknown error";
        (void)cu.error_string(result, &sentence);
        fprintf(stderr, "the GPU: %s: %s (CUDA error %d)%s%s\n", what, sentence, result,
                task[0] != '\0' ? ", at " : "", task);
        exit(FAILED);
    }
}

/* Opens and initialises the driver. Returns NULL or the reason why there is none. */
static const char *find_driver(void)
{
    static char failure[160];
    static bool tried;
    if (tried) {
        return failure[0] == '\0' ? NULL : failure;
    }
    tried = true;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        snprintf(failure, sizeof failure, "no CUDA driver: %.120s", dlerror());
        return failure;
    }
#define FIND(name, symbol, args)                                                   \
    {                                                                              \
        void *address = dlsym(library, symbol);                                    \
        if (address == NULL) {                                                     \
            snprintf(failure, sizeof failure, "the CUDA driver lacks %s", symbol); \
            return failure;                                                        \
        }                                                                          \
        memcpy(&cu.name, &address, sizeof address);                                \
    }
    ENTRIES(FIND)
    int result = cu.init(0);
    if (result != 0) {
        const char *sentence = "unknown error";
        (void)cu.error_string(result, &sentence);
        snprintf(failure, sizeof failure, "the CUDA driver does not start: %.100s", sentence);
        return failure;
    }
    return NULL;
}

int gpu_count(int *driver)
{
    int count = 0;
    *driver = 0;
    if (find_driver() == NULL) {
        check(cu.device_count(&count), "counting GPUs");
        check(cu.driver_version(driver), "asking the driver");
    }
    return count;
}

void gpu_describe(int ordinal, gpu_properties *gpu)
{
    int device;
    check(cu.device_get(&device, ordinal), "finding it");
    check(cu.device_name(gpu->name, sizeof gpu->name, device), "asking for its name");
    check(cu.device_memory(&gpu->memory_bytes, device), "asking for its memory");
    check(cu.device_attribute(&gpu->major, CAPABILITY_MAJOR, device), "asking for its capability");
    check(cu.device_attribute(&gpu->minor, CAPABILITY_MINOR, device), "asking for its capability");
    check(cu.device_attribute(&gpu->multiprocessors, MULTIPROCESSORS, device),
          "asking for its multiprocessors");
    check(cu.device_attribute(&gpu->l2_bytes, L2_BYTES, device), "asking for its L2");
}

const char *gpu_open(void)
{
    void *context;
    int device, version;
    const char *failure = find_driver();
    if (failure != NULL) {
        return failure;
    }
    if (gpu_count(&version) == 0) {
        return "the CUDA driver finds no GPU it can use";
    }
    check(cu.device_get(&device, 0), "finding it");
    check(cu.primary_retain(&context, device), "retaining its primary context");
    check(cu.set_current(context), "entering its context");
    return NULL;
}

/* ---- Memory and streams ---------------------------------------------------------------------- */

void *gpu_alloc(size_t bytes)
{
    char what[64];
    device_pointer p = 0;
    snprintf(what, sizeof what, "allocating %.3g GiB", (double)bytes * 0x1p-30);
    check(cu.alloc(&p, bytes > 0 ? bytes : 1), what);
    return (void *)(uintptr_t)p;
}

void gpu_free(void *p)
{
    check(cu.free((device_pointer)(uintptr_t)p), "freeing memory");
}

/* The driver's copy returns after `from` has been read, which may be before `to` is written. */
void gpu_put(void *to, const void *from, size_t bytes)
{
    check(cu.put((device_pointer)(uintptr_t)to, from, bytes), "copying to it");
    gpu_wait();
}

void gpu_get(void *to, const void *from, size_t bytes)
{
    check(cu.get(to, (device_pointer)(uintptr_t)from, bytes), "copying from it");
}

size_t gpu_free_bytes(void)
{
    size_t left, total;
    check(cu.memory_info(&left, &total), "asking for free memory");
    return left;
}

void *gpu_stream(void)
{
    void *stream;
    check(cu.stream_create(&stream, STREAM_NON_BLOCKING), "making a stream");
    return stream;
}

void gpu_wait(void)
{
    check(cu.synchronize(), "waiting for it");
}

/* ---- Events and graphs ----------------------------------------------------------------------- */

void *gpu_event(void)
{
    void *event;
    check(cu.event_create(&event, 0), "making an event");
    return event;
}

void gpu_record(void *event, void *stream)
{
    check(cu.event_record(event, stream), "recording an event");
}

double gpu_seconds(void *start, void *end)
{
    float milliseconds;
    check(cu.event_wait(end), "waiting for an event");
    check(cu.event_elapsed(&milliseconds, start, end), "asking for a time");
    return (double)milliseconds * 1e-3;
}

void gpu_capture(void *stream)
{
    check(cu.capture_start(stream, CAPTURE_THREAD_LOCAL), "starting a graph");
}

void *gpu_captured(void *stream)
{
    void *graph, *exec;
    check(cu.capture_end(stream, &graph), "ending a graph");
    check(cu.graph_instantiate(&exec, graph, 0), "making a graph ready");
    check(cu.graph_free(graph), "freeing a graph");
    return exec;
}

void gpu_launch(void *graph, void *stream)
{
    check(cu.graph_launch(graph, stream), "launching a graph");
}

void gpu_graph_free(void *graph)
{
    check(cu.exec_free(graph), "freeing a graph");
}

/* ---- Work on the default stream -------------------------------------------------------------- */

void gpu_move(void *to, const void *from, size_t bytes)
{
    check(cu.copy((device_pointer)(uintptr_t)to, (device_pointer)(uintptr_t)from, bytes, NULL),
          "copying within it");
}

void gpu_fill(void *p, unsigned word, size_t bytes)
{
    check(cu.set_words((device_pointer)(uintptr_t)p, word, bytes / 4, NULL), "filling memory");
}

void gpu_clear(void *p, size_t bytes)
{
    gpu_fill(p, 0, bytes);
}

void *gpu_image(const void *fatbin)
{
    void *library;
    check(cu.library_load(&library, fatbin, NULL, NULL, 0, NULL, NULL, 0), "loading kernels");
    return library;
}

void *gpu_kernel(void *image, const char *name)
{
    void *kernel, *function;
    check(cu.library_kernel(&kernel, image, name), name);
    check(cu.kernel_function(&function, kernel), name);
    return function;
}

void gpu_run(void *kernel, gpu_grid grid, const void *params)
{
    void *arguments[] = {(void *)params};
    check(cu.launch(kernel, grid.x, grid.y, grid.z, grid.threads, 1, 1, 0, NULL, arguments, NULL),
          "launching a kernel");
}
