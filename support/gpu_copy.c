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
    gpu_copy copy = {.here = *t, .there = *t};
    int64_t below = 0, above = 0, size = (int64_t)attn_dtype_size(t->dtype);
    bool empty = t->data == NULL;
    for (int a = 0; a < 4; a++) {
        int64_t reach = (t->shape[a] - 1) * t->stride[a];
        empty |= t->shape[a] == 0;
        *(reach < 0 ? &below : &above) += reach < 0 ? -reach : reach;
    }
    if (empty) {
        return copy;
    }
    copy.bytes = (size_t)((below + above + 1) * size);
    copy.first = (char *)t->data - below * size;
    /* the copy keeps the original's place within 256 bytes, hence its alignment */
    size_t before = MARGIN + (uintptr_t)copy.first % 256;
    copy.memory = gpu_alloc(before + copy.bytes + MARGIN);
    memset(margin, 0xFF, sizeof margin);
    gpu_put(copy.memory, margin, before);
    gpu_put(copy.memory + before, copy.first, copy.bytes);
    gpu_put(copy.memory + before + copy.bytes, margin, MARGIN);
    copy.there.data = copy.memory + before + below * size;
    return copy;
}

gpu_copy gpu_copy_beside(const attn_tensor *t, const gpu_copy *earlier)
{
    if (t->data == NULL || t->data != earlier->here.data) {
        return gpu_copy_tensor(t);
    }
    gpu_copy view = {.here = *t, .there = *t};
    view.there.data = earlier->there.data;
    return view;
}

static const char *start(const gpu_copy *copy)
{
    return copy->memory + MARGIN + (uintptr_t)copy->first % 256;
}

void gpu_copy_back(const gpu_copy *copy)
{
    if (copy->memory != NULL) {
        gpu_get(copy->first, start(copy), copy->bytes);
    }
}

bool gpu_margins_intact(const gpu_copy *copy)
{
    if (copy->memory == NULL) {
        return true;
    }
    gpu_get(margin, start(copy) - MARGIN, MARGIN);
    gpu_get(margin + MARGIN, start(copy) + copy->bytes, MARGIN);
    bool intact = true;
    for (int i = 0; i < 2 * MARGIN; i++) {
        intact &= margin[i] == 0xFF;
    }
    return intact;
}

void gpu_copy_free(gpu_copy *copy)
{
    if (copy->memory != NULL) {
        gpu_free(copy->memory);
    }
}
