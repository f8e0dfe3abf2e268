/*
 * launch.c: launches on the caller's stream, in the GPU's context.
 */
#include "core/error.h"
#include "cuda/gpu.h"

attn_status attn_cuda_enter(const attn_cuda *cuda, bool *borrowed)
{
    cu_context current = NULL;
    cu_device device = -1;
    *borrowed = false;
    TRY(attn_driver_check(cuda->driver, cuda->driver->context_current(&current),
                          "asking for the context"));
    if (current == NULL) {
        *borrowed = true;
        return attn_driver_check(cuda->driver, cuda->driver->context_push(cuda->context),
                                 "entering the GPU's context");
    }
    if (cuda->driver->context_device(&device) != 0 || device != cuda->device) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "the current CUDA context is of GPU %d, the attn_context of GPU %d",
                         device, cuda->device);
    }
    return ATTN_OK;
}

void attn_cuda_leave(const attn_cuda *cuda, bool borrowed)
{
    cu_context context;
    if (borrowed) {
        (void)cuda->driver->context_pop(&context);
    }
}

attn_status attn_cuda_launch(const attn_cuda *cuda, int kernel, const uint32_t grid[3],
                             void *params, void *stream)
{
    const attn_cuda_kernel *chosen = &attn_cuda_kernels[kernel];
    void *list[] = {params};
    return attn_driver_check(cuda->driver,
                             cuda->driver->launch((cu_function)cuda->kernels[kernel], grid[0],
                                                  grid[1], grid[2], (unsigned)chosen->threads, 1, 1,
                                                  (unsigned)chosen->shared_bytes, stream, list,
                                                  NULL),
                             chosen->name);
}
