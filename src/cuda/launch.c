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
    if (current != NULL && cuda->driver->context_device(&device) == 0 && device == cuda->device) {
        return ATTN_OK;
    }
    TRY(attn_driver_check(cuda->driver, cuda->driver->context_push(cuda->context),
                          "entering the GPU's context"));
    *borrowed = true;
    return ATTN_OK;
}

void attn_cuda_leave(const attn_cuda *cuda, bool borrowed)
{
    cu_context context;
    if (borrowed) {
        (void)cuda->driver->context_pop(&context);
    }
}

/* attributes: `count` of them. */
static attn_status launch(const attn_cuda *cuda, int kernel, const uint32_t grid[3], void *params,
                          void *stream, const cu_launch_attribute *attributes, uint32_t count)
{
    const attn_cuda_kernel *chosen = &attn_cuda_kernels[kernel];
    const cu_launch_config config = {.grid = {grid[0], grid[1], grid[2]},
                                     .block = {(uint32_t)chosen->threads, 1, 1},
                                     .shared_bytes = (uint32_t)chosen->shared_bytes,
                                     .stream = stream,
                                     .attributes = attributes,
                                     .count = count};
    void *list[] = {params};
    return attn_driver_check(
        cuda->driver, cuda->driver->launch(&config, (cu_function)cuda->kernels[kernel], list, NULL),
        chosen->name);
}

attn_status attn_cuda_launch(const attn_cuda *cuda, int kernel, const uint32_t grid[3],
                             void *params, void *stream)
{
    return launch(cuda, kernel, grid, params, stream, NULL, 0);
}

attn_status attn_cuda_launch_early(const attn_cuda *cuda, int kernel, const uint32_t grid[3],
                                   void *params, void *stream)
{
    const cu_launch_attribute early = {.id = CU_BEGIN_EARLY, .value.number = 1};
    return launch(cuda, kernel, grid, params, stream, &early, cuda->capability >= 90);
}

attn_status attn_cuda_launch_loop(const attn_cuda *cuda, int kernel, int64_t ctas, void *params,
                                  void *stream)
{
    enum { MOST = 1 << 20 };
    const uint32_t grid[3] = {(uint32_t)(ctas < MOST ? ctas : MOST), 1, 1};
    bool borrowed;
    if (ctas == 0) {
        return ATTN_OK;
    }
    TRY(attn_cuda_enter(cuda, &borrowed));
    attn_status status = attn_cuda_launch(cuda, kernel, grid, params, stream);
    attn_cuda_leave(cuda, borrowed);
    return status;
}
