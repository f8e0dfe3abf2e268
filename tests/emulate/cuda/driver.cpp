/*
 * driver.cpp: libcuda.so.1 of the emulated GPU: the entry points that src/cuda/driver.h and
 * support/gpu.c look for. Memory is the host's, kernels are those of entry.h by name, and work is
 * done when it is asked for, except between the start and the end of a capture.
 */
#include "cuda/driver.h"
#include "entry.h"
#include "tensor_map.h"
#include <functional>
#include <memory>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace emulated
{

entry *entries;

entry::entry(const char *name_, void (*call_)(const void *), size_t bytes_, bool paired_)
    : name(name_), call(call_), bytes(bytes_), paired(paired_), next(entries)
{
    entries = this;
}

} // namespace emulated

/* Few multiprocessors: kernels whose blocks take items in turn have more turns. */
enum { MULTIPROCESSORS = 3, INVALID = 1, NOT_FOUND = 500 };

static int capability()
{
    const char *said = getenv("ATTN_EMULATED_CAPABILITY");
    return said ? atoi(said) : 90;
}

/* ATTN_EMULATED_HANGS: kernels whose names begin so never end. */
static void hang_at(const char *name)
{
    const char *said = getenv("ATTN_EMULATED_HANGS");
    while (said && strncmp(name, said, strlen(said)) == 0) {
        pause();
    }
}

typedef std::vector<std::function<void()>> work_list;
static thread_local work_list *captured;

static int submit(std::function<void()> work)
{
    captured ? captured->push_back(std::move(work)) : work();
    return 0;
}

extern "C" {

/* ---- the device ------------------------------------------------------------------------------ */

int cuInit(unsigned)
{
    return 0;
}
int cuDriverGetVersion(int *version)
{
    *version = 12080;
    return 0;
}
int cuGetErrorName(int, const char **name)
{
    *name = "CUDA_ERROR_EMULATED";
    return 0;
}
int cuGetErrorString(int, const char **sentence)
{
    *sentence = "the emulated GPU refused it";
    return 0;
}
int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal == 0 ? 0 : INVALID;
}
int cuDeviceGetCount(int *count)
{
    *count = 1;
    return 0;
}
int cuDeviceGetName(char *name, int size, int)
{
    snprintf(name, (size_t)size, "emulated GPU");
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int)
{
    *bytes = (size_t)4 << 30;
    return 0;
}
int cuDeviceGetAttribute(int *value, int what, int)
{
    *value = what == 16   ? MULTIPROCESSORS
             : what == 38 ? 60 << 20
             : what == 75 ? capability() / 10
             : what == 76 ? capability() % 10
             : what == 97 ? EMULATED_SHARED_BYTES
                          : 0;
    return 0;
}

/* ---- contexts: one --------------------------------------------------------------------------- */

int cuDevicePrimaryCtxRetain(void **context, int)
{
    static char primary;
    *context = &primary;
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int)
{
    return 0;
}
int cuCtxGetCurrent(void **context)
{
    return cuDevicePrimaryCtxRetain(context, 0);
}
int cuCtxSetCurrent(void *)
{
    return 0;
}
int cuCtxGetDevice(int *device)
{
    *device = 0;
    return 0;
}
int cuCtxPushCurrent_v2(void *)
{
    return 0;
}
int cuCtxPopCurrent_v2(void **)
{
    return 0;
}
int cuCtxSynchronize()
{
    return 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

int cuMemAlloc_v2(void **p, size_t bytes)
{
    *p = aligned_alloc(512, (bytes + 511) / 512 * 512);
    if (*p == nullptr) {
        return 2;
    }
    memset(*p, 0xFF, bytes); /* a kernel that counts on zeros fails */
    return 0;
}
int cuMemFree_v2(void *p)
{
    free(p);
    return 0;
}
int cuMemcpyHtoD_v2(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return 0;
}
int cuMemcpyDtoH_v2(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return 0;
}
int cuMemGetInfo_v2(size_t *left, size_t *total)
{
    *left = *total = (size_t)4 << 30;
    return 0;
}
int cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t bytes, void *)
{
    return submit([=] { memcpy(to, from, bytes); });
}
int cuMemsetD32Async(unsigned *to, unsigned value, size_t count, void *)
{
    return submit([=] {
        for (size_t i = 0; i < count; i++) {
            to[i] = value;
        }
    });
}

/* ---- kernels --------------------------------------------------------------------------------- */

int cuLibraryLoadData(void **library, const void *image, void *, void **, unsigned, void *, void **,
                      unsigned)
{
    *library = (void *)image;
    return 0;
}
int cuLibraryUnload(void *)
{
    return 0;
}
int cuLibraryGetKernel(void **kernel, void *, const char *name)
{
    for (emulated::entry *at = emulated::entries; at; at = at->next) {
        if (strcmp(at->name, name) == 0) {
            *kernel = at;
            return 0;
        }
    }
    fprintf(stderr, "emulated GPU: no kernel %s\n", name);
    return NOT_FOUND;
}
int cuKernelGetFunction(void **function, void *kernel)
{
    *function = kernel;
    return 0;
}
int cuKernelSetAttribute(int, int value, void *, int)
{
    return value <= EMULATED_SHARED_BYTES ? 0 : INVALID;
}
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void *, void **params, void **)
{
    const emulated::entry *kernel = (const emulated::entry *)function;
    if (block_y != 1 || block_z != 1 || block_x % 32 != 0 || grid_x == 0 || grid_y == 0 ||
        grid_z == 0 || shared_bytes > EMULATED_SHARED_BYTES ||
        (kernel->paired && grid_x % 2 != 0)) {
        return INVALID;
    }
    std::shared_ptr<void> copy(aligned_alloc(64, (kernel->bytes + 63) / 64 * 64), free);
    memcpy(copy.get(), params[0], kernel->bytes);
    return submit([=] {
        hang_at(kernel->name);
        emulated::run_grid({grid_x, grid_y, grid_z}, {block_x, 1, 1}, kernel->name, kernel->call,
                           copy.get(), kernel->paired);
    });
}
int cuLaunchKernelEx(const cu_launch_config *config, void *function, void **params, void **extra)
{
    return cuLaunchKernel(function, config->grid[0], config->grid[1], config->grid[2],
                          config->block[0], config->block[1], config->block[2],
                          config->shared_bytes, NULL, params, extra);
}

/* ---- tensor maps ----------------------------------------------------------------------------- */

int cuTensorMapEncodeTiled(attn_tensor_map *map, int, uint32_t rank, void *address,
                           const uint64_t *extents, const uint64_t *strides, const uint32_t *box,
                           const uint32_t *, int, int swizzle, int, int)
{
    emulated::tensor_map made = {};
    made.address = (unsigned char *)address;
    made.axes = rank, made.swizzled = swizzle == 3;
    for (uint32_t axis = 0; axis < rank; axis++) {
        made.extent[axis] = (uint32_t)extents[axis], made.box[axis] = box[axis];
        if (axis > 0) {
            made.stride[axis - 1] = strides[axis - 1];
        }
        if (extents[axis] == 0 || extents[axis] > UINT64_C(1) << 32 || box[axis] == 0 ||
            box[axis] > 256 || (axis > 0 && strides[axis - 1] % 16 != 0)) {
            return INVALID;
        }
    }
    if ((uintptr_t)address % 16 != 0 || box[0] * 2 > 128) {
        return INVALID;
    }
    memcpy(map, &made, sizeof made);
    return 0;
}

/* ---- streams, events, graphs ----------------------------------------------------------------- */

int cuStreamCreate(void **stream, unsigned)
{
    static char streams[16];
    static unsigned count;
    *stream = &streams[count++ % 16];
    return 0;
}
int cuEventCreate(void **event, unsigned)
{
    static char any;
    *event = &any;
    return 0;
}
int cuEventRecord(void *, void *)
{
    return 0;
}
int cuEventSynchronize(void *)
{
    return 0;
}
int cuEventElapsedTime(float *milliseconds, void *, void *)
{
    *milliseconds = 1;
    return 0;
}
int cuStreamBeginCapture_v2(void *, int)
{
    captured = new work_list;
    return 0;
}
int cuStreamEndCapture(void *, void **graph)
{
    *graph = captured;
    captured = NULL;
    return 0;
}
int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long)
{
    *exec = new work_list(*(work_list *)graph);
    return 0;
}
int cuGraphDestroy(void *graph)
{
    delete (work_list *)graph;
    return 0;
}
int cuGraphLaunch(void *exec, void *)
{
    for (const auto &work : *(work_list *)exec) {
        work();
    }
    return 0;
}
int cuGraphExecDestroy(void *exec)
{
    delete (work_list *)exec;
    return 0;
}

} // extern "C"
