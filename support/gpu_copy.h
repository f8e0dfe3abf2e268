/*
 * gpu_copy.h: tensors of the host in the memory of GPU 0, in the same layout, with margins that
 * show writes beside them. gpu_open comes first.
 */
#ifndef SUPPORT_GPU_COPY_H
#define SUPPORT_GPU_COPY_H

#include <attn/attn.h>
#include <stdbool.h>

/* A copy, in the GPU's memory, of everything between a tensor's first and last element, gaps
 * included, with margins of 0xFF bytes on both sides. `there` is the view of the copy. An absent or
 * empty tensor has none. */
typedef struct gpu_copy {
    attn_tensor here, there;
    char *first; /* of the host's bytes */
    char *memory;
    size_t bytes;
} gpu_copy;

gpu_copy gpu_copy_tensor(const attn_tensor *t);

/* The same; a tensor that begins where the one of an earlier copy does is a view of that copy. */
gpu_copy gpu_copy_beside(const attn_tensor *t, const gpu_copy *earlier);

/* Copies back to the host. */
void gpu_copy_back(const gpu_copy *copy);

/* True if the margins still hold 0xFF. */
bool gpu_margins_intact(const gpu_copy *copy);
void gpu_copy_free(gpu_copy *copy);

#endif
