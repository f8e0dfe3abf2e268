/*
 * gpu.c: see gpu.h.
 */
#include "gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MARGIN = 4096 };

typedef unsigned long long device_pointer;

static struct {
    int (*init)(unsigned);
    int (*device_get)(int *, int);
    int (*primary_retain)(void **, int);
    int (*set_current)(void *);
    int (*alloc)(device_pointer *, size_t);
    int (*free)(device_pointer);
    int (*put)(device_pointer, const void *, size_t);
    int (*get)(void *, device_pointer, size_t);
    int (*stream_create)(void **, unsigned);
    int (*synchronize)(void);
} cu;

static void check(int result, const char *what)
{
    if (result != 0) {
        fprintf(stderr, "%s: CUDA error %d\n", what, result);
        exit(1);
    }
}

static void find(void *library, const char *symbol, void *entry)
{
    void *address = dlsym(library, symbol);
    if (address == NULL) {
        fprintf(stderr, "libcuda lacks %s\n", symbol);
        exit(1);
    }
    memcpy(entry, &address, sizeof address);
}

void gpu_open(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
    int device;
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    find(library, "cuInit", &cu.init);
    find(library, "cuDeviceGet", &cu.device_get);
    find(library, "cuDevicePrimaryCtxRetain", &cu.primary_retain);
    find(library, "cuCtxSetCurrent", &cu.set_current);
    find(library, "cuMemAlloc_v2", &cu.alloc);
    find(library, "cuMemFree_v2", &cu.free);
    find(library, "cuMemcpyHtoD_v2", &cu.put);
    find(library, "cuMemcpyDtoH_v2", &cu.get);
    find(library, "cuStreamCreate", &cu.stream_create);
    find(library, "cuCtxSynchronize", &cu.synchronize);
    check(cu.init(0), "cuInit");
    check(cu.device_get(&device, 0), "cuDeviceGet");
    check(cu.primary_retain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cu.set_current(context), "cuCtxSetCurrent");
}

void *gpu_alloc(size_t bytes)
{
    device_pointer p = 0;
    check(cu.alloc(&p, bytes > 0 ? bytes : 1), "cuMemAlloc");
    return (void *)(uintptr_t)p;
}

void gpu_free(void *p)
{
    check(cu.free((device_pointer)(uintptr_t)p), "cuMemFree");
}

void gpu_put(void *to, const void *from, size_t bytes)
{
    check(cu.put((device_pointer)(uintptr_t)to, from, bytes), "cuMemcpyHtoD");
}

void gpu_get(void *to, const void *from, size_t bytes)
{
    check(cu.get(to, (device_pointer)(uintptr_t)from, bytes), "cuMemcpyDtoH");
}

void *gpu_stream(void)
{
    void *stream;
    check(cu.stream_create(&stream, 1), "cuStreamCreate"); /* non-blocking */
    return stream;
}

void gpu_wait(void)
{
    check(cu.synchronize(), "cuCtxSynchronize");
}

gpu_copy gpu_copy_tensor(const attn_tensor *t)
{
    gpu_copy c = {.here = *t, .there = *t};
    int64_t below = 0, above = 0, size = (int64_t)attn_dtype_size(t->dtype);
    int empty = t->data == NULL;
    for (int a = 0; a < 4; a++) {
        int64_t reach = (t->shape[a] - 1) * t->stride[a];
        empty |= t->shape[a] == 0;
        *(reach < 0 ? &below : &above) += reach < 0 ? -reach : reach;
    }
    if (empty) {
        return c;
    }
    c.bytes = (size_t)((below + above + 1) * size);
    c.first = (char *)t->data - below * size;
    /* the copy keeps the original's place within 256 bytes, so that its alignment is the same */
    size_t shift = (uintptr_t)c.first % 256, all = c.bytes + shift + 2 * MARGIN;
    char *fill = malloc(all);
    c.memory = gpu_alloc(all);
    if (fill == NULL) {
        exit(1);
    }
    memset(fill, 0xFF, all);
    memcpy(fill + MARGIN + shift, c.first, c.bytes);
    gpu_put(c.memory, fill, all);
    free(fill);
    c.there.data = c.memory + MARGIN + shift + below * size;
    return c;
}

static const char *start(const gpu_copy *c)
{
    return c->memory + MARGIN + (uintptr_t)c->first % 256;
}

void gpu_copy_back(const gpu_copy *c)
{
    if (c->memory != NULL) {
        gpu_get(c->first, start(c), c->bytes);
    }
}

int gpu_margins_intact(const gpu_copy *c)
{
    static unsigned char margin[2][MARGIN];
    if (c->memory == NULL) {
        return 1;
    }
    gpu_get(margin[0], start(c) - MARGIN, MARGIN);
    gpu_get(margin[1], start(c) + c->bytes, MARGIN);
    int intact = 1;
    for (int i = 0; i < 2 * MARGIN; i++) {
        intact &= margin[i / MARGIN][i % MARGIN] == 0xFF;
    }
    return intact;
}

void gpu_copy_free(gpu_copy *c)
{
    if (c->memory != NULL) {
        gpu_free(c->memory);
    }
}
