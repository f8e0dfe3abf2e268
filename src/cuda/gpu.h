/*
 * gpu.h: the contents of a GPU context, and the launch of kernels. Private to src/cuda.
 */
#ifndef ATTN_CUDA_GPU_H
#define ATTN_CUDA_GPU_H

#include "cuda/cuda.h"
#include "cuda/driver.h"
#include "cuda/kernels.h"

struct attn_cuda {
    const attn_driver *driver;
    cu_device device;
    /* context for threads without a current one: the creator's, or the primary one */
    cu_context context;
    bool primary;                                            /* the context was retained here */
    int capability, multiprocessors, l2_bytes, shared_bytes; /* shared: the most of a CTA */
    cu_library images[ATTN_CUDA_FAMILIES];                   /* NULL for other GPUs */
    /* NULL for other GPUs, and for kernels that need more shared memory */
    cu_kernel kernels[ATTN_CUDA_KERNELS];
    char name[160];
};

/* Stays in the thread's current context if it is of this GPU, else borrows the one that attn_cuda
 * keeps until attn_cuda_leave. The driver makes tensor maps in a context only. Errors: device. */
attn_status attn_cuda_enter(const attn_cuda *cuda, bool *borrowed);
void attn_cuda_leave(const attn_cuda *cuda, bool borrowed);

/* Launches a kernel with its threads and shared memory; params: its one argument. */
attn_status attn_cuda_launch(const attn_cuda *cuda, int kernel, const uint32_t grid[3],
                             void *params, void *stream);

/* The same of a kernel that may begin before the launch ahead has ended, and waits for that itself
 * (ptx::wait_for_last_launch). */
attn_status attn_cuda_launch_early(const attn_cuda *cuda, int kernel, const uint32_t grid[3],
                                   void *params, void *stream);

/* Launches CTAs that share work of any size, 2^20 of them at most, in the GPU's context; none for
 * none. Errors: as attn_cuda_enter. */
attn_status attn_cuda_launch_loop(const attn_cuda *cuda, int kernel, int64_t ctas, void *params,
                                  void *stream);

/* True if rows can be read in pieces of 16 bytes: elements side by side, strides and address
 * multiples of 16 bytes. */
bool attn_cuda_is_aligned(const attn_tensor *tensor);

/* True if the TMA takes the tensor. */
bool attn_cuda_is_boxed(const attn_tensor *tensor);

/* An axis of a tensor, in elements, and how far a box of it reaches. */
typedef struct attn_cuda_axis {
    int64_t extent, stride;
    int32_t box;
} attn_cuda_axis;

/* Makes a map of boxes of a 16-bit tensor, 64 columns each. axes: the other axes, from the
 * innermost on. Errors: device. */
attn_status attn_cuda_map(const attn_driver *cu, attn_tensor_map *map, const attn_tensor *tensor,
                          const attn_cuda_axis *axes, uint32_t count);

/* Makes a map of columns, rows, heads, batches, with boxes of so many rows of a head. */
attn_status attn_cuda_map_rows(const attn_driver *cu, attn_tensor_map *map,
                               const attn_tensor *tensor, int32_t rows);

/* The same of tensors of whole chunks of 64 columns: columns of a chunk, rows, chunks, heads,
 * batches; a box has all chunks. */
attn_status attn_cuda_map_chunks(const attn_driver *cu, attn_tensor_map *map,
                                 const attn_tensor *tensor, int32_t rows);

/* The embedded images (images.c). */
#define ATTN_FAMILY(family, source) extern const unsigned char attn_image_##source[];
#include "cuda/families.inc"

#endif
