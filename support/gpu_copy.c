/*
 * gpu_copy.c: see gpu_copy.h.
 */
#include "gpu_copy.h"
#include "gpu.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MARGIN = 4096 };

/* margins on their way: both, or one and the bytes that align the tensor */
static unsigned char margin[2 * MARGIN];

gpu_copy gpu_copy_tensor(const attn_tensor *t)
{
    gpu_copy c = {.here = *t, .there = *t};
    int64_t below = 0, above = 0, size = (int64_t)attn_dtype_size(t->dtype);
    bool empty = t->data == NULL;
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
    /* the copy keeps the original's place within 256 bytes, hence its alignment */
    size_t before = MARGIN + (uintptr_t)c.first % 256;
    c.memory = gpu_alloc(before + c.bytes + MARGIN);
    memset(margin, 0xFF, sizeof margin);
    gpu_put(c.memory, margin, before);
    gpu_put(c.memory + before, c.first, c.bytes);
    gpu_put(c.memory + before + c.bytes, margin, MARGIN);
    c.there.data = c.memory + before + below * size;
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

bool gpu_margins_intact(const gpu_copy *c)
{
    if (c->memory == NULL) {
        return true;
    }
    gpu_get(margin, start(c) - MARGIN, MARGIN);
    gpu_get(margin + MARGIN, start(c) + c->bytes, MARGIN);
    bool intact = true;
    for (int i = 0; i < 2 * MARGIN; i++) {
        intact &= margin[i] == 0xFF;
    }
    return intact;
}

void gpu_copy_free(gpu_copy *c)
{
    if (c->memory != NULL) {
        gpu_free(c->memory);
    }
}
