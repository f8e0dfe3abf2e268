/*
 * context.c: a GPU and its kernels, loaded once.
 */
#include "core/error.h"
#include "cuda/gpu.h"
#include <stdio.h>
#include <string.h>

static const size_t BYTES = (sizeof(attn_cuda) + 63) / 64 * 64;

static attn_status describe(attn_cuda *cuda, int32_t ordinal)
{
    const attn_driver *cu = cuda->driver;
    int count = 0, major = 0, minor = 0, version = 0;
    char model[96] = "";
    TRY(attn_driver_check(cu, cu->device_count(&count), "counting GPUs"));
    if (ordinal < 0 || ordinal >= count) {
        return attn_fail(ATTN_ERR_UNSUPPORTED, "config.device_ordinal = %d, but there are %d GPUs",
                         ordinal, count);
    }
    TRY(attn_driver_check(cu, cu->device_get(&cuda->device, ordinal), "finding the GPU"));
    TRY(attn_driver_check(cu, cu->device_name(model, sizeof model, cuda->device),
                          "naming the GPU"));
    TRY(attn_driver_check(cu, cu->device_attribute(&major, CU_CAPABILITY_MAJOR, cuda->device),
                          "asking the GPU"));
    TRY(attn_driver_check(cu, cu->device_attribute(&minor, CU_CAPABILITY_MINOR, cuda->device),
                          "asking the GPU"));
    TRY(attn_driver_check(
        cu, cu->device_attribute(&cuda->multiprocessors, CU_MULTIPROCESSORS, cuda->device),
        "asking the GPU"));
    TRY(attn_driver_check(cu, cu->device_attribute(&cuda->l2_bytes, CU_L2_BYTES, cuda->device),
                          "asking the GPU"));
    TRY(attn_driver_check(
        cu, cu->device_attribute(&cuda->shared_bytes, CU_SHARED_BYTES_OPTIN, cuda->device),
        "asking the GPU"));
    TRY(attn_driver_check(cu, cu->driver_version(&version), "asking the driver"));
    cuda->capability = 10 * major + minor;
    (void)snprintf(cuda->name, sizeof cuda->name,
                   "%s, sm_%d, %d multiprocessors, %d MiB of L2, driver %d.%d", model,
                   cuda->capability, cuda->multiprocessors, cuda->l2_bytes >> 20, version / 1000,
                   version % 1000 / 10);
    return ATTN_OK;
}

/* The caller's current context if it is on this GPU, else the primary one. */
static attn_status choose_context(attn_cuda *cuda)
{
    const attn_driver *cu = cuda->driver;
    cu_device device = -1;
    TRY(attn_driver_check(cu, cu->context_current(&cuda->context),
                          "asking for the current context"));
    if (cuda->context != NULL && cu->context_device(&device) == 0 && device == cuda->device) {
        return ATTN_OK;
    }
    TRY(attn_driver_check(cu, cu->primary_retain(&cuda->context, cuda->device),
                          "retaining the GPU's primary context"));
    cuda->primary = true;
    return ATTN_OK;
}

static const unsigned char *const images[] = {
#define ATTN_FAMILY(family, source) attn_image_##source,
#include "cuda/families.inc"
};

/* Looks every kernel up and has the driver load it now, since loading later could disturb a graph
 * capture. */
static attn_status load_kernels(attn_cuda *cuda)
{
    const attn_driver *cu = cuda->driver;
    for (int i = cuda->capability == 90 ? ATTN_CUDA_SM90 : ATTN_CUDA_SM80; i < ATTN_CUDA_FAMILIES;
         i++) {
        TRY(attn_driver_check(
            cu, cu->library_load(&cuda->images[i], images[i], NULL, NULL, 0, NULL, NULL, 0),
            "loading kernels"));
    }
    for (int i = 0; i < ATTN_CUDA_KERNELS; i++) {
        const attn_cuda_kernel *kernel = &attn_cuda_kernels[i];
        cu_library image = cuda->images[kernel->family];
        cu_function function;
        if (image == NULL || kernel->shared_bytes > cuda->shared_bytes) {
            continue;
        }
        TRY(attn_driver_check(cu, cu->library_kernel(&cuda->kernels[i], image, kernel->name),
                              kernel->name));
        TRY(attn_driver_check(cu,
                              cu->kernel_set_attribute(CU_KERNEL_MAX_DYNAMIC_SHARED_BYTES,
                                                       kernel->shared_bytes, cuda->kernels[i],
                                                       cuda->device),
                              kernel->name));
        TRY(attn_driver_check(cu, cu->kernel_function(&function, cuda->kernels[i]), kernel->name));
    }
    return ATTN_OK;
}

static attn_status fill(attn_cuda *cuda, int32_t ordinal)
{
    TRY(attn_driver_get(&cuda->driver));
    TRY(describe(cuda, ordinal));
    if (cuda->capability < 80) {
        return attn_fail(ATTN_ERR_UNSUPPORTED, "%s: sm_80 or newer is needed", cuda->name);
    }
    TRY(choose_context(cuda));
    cu_context before;
    TRY(attn_driver_check(cuda->driver, cuda->driver->context_push(cuda->context),
                          "entering the GPU's context"));
    attn_status status = load_kernels(cuda);
    (void)cuda->driver->context_pop(&before);
    return status;
}

attn_status attn_cuda_create(attn_cuda **cuda, int32_t ordinal, const attn_allocator *allocator)
{
    attn_cuda *made = allocator->alloc(allocator->user, BYTES, 64);
    *cuda = NULL;
    if (made == NULL) {
        return attn_fail(ATTN_ERR_OUT_OF_MEMORY, "no memory for a GPU context of %llu bytes",
                         (unsigned long long)BYTES);
    }
    memset(made, 0, sizeof *made);
    attn_status status = fill(made, ordinal);
    if (status != ATTN_OK) {
        attn_cuda_destroy(made, allocator);
        return status;
    }
    *cuda = made;
    return ATTN_OK;
}

void attn_cuda_destroy(attn_cuda *cuda, const attn_allocator *allocator)
{
    if (cuda == NULL) {
        return;
    }
    for (int i = 0; i < ATTN_CUDA_FAMILIES; i++) {
        if (cuda->images[i] != NULL) {
            (void)cuda->driver->library_unload(cuda->images[i]);
        }
    }
    if (cuda->primary) {
        (void)cuda->driver->primary_release(cuda->device);
    }
    allocator->free(allocator->user, cuda, BYTES);
}

const char *attn_cuda_name(const attn_cuda *cuda)
{
    return cuda->name;
}
