/*
 * context.c: a GPU and its kernels, loaded once.
 */
#include "core/error.h"
#include "cuda/forward/forward.h"
#include <stdio.h>
#include <string.h>

static const size_t BYTES = (sizeof(attn_cuda) + 63) / 64 * 64;

static attn_status describe(attn_cuda *x, int32_t ordinal)
{
    const attn_driver *cu = x->driver;
    int count = 0, major = 0, minor = 0, version = 0;
    char model[96] = "";
    TRY(attn_driver_check(cu, cu->device_count(&count), "counting GPUs"));
    if (ordinal < 0 || ordinal >= count) {
        return attn_fail(ATTN_ERR_UNSUPPORTED, "config.device_ordinal = %d, but there are %d GPUs",
                         ordinal, count);
    }
    TRY(attn_driver_check(cu, cu->device_get(&x->device, ordinal), "finding the GPU"));
    TRY(attn_driver_check(cu, cu->device_name(model, sizeof model, x->device), "naming the GPU"));
    TRY(attn_driver_check(cu, cu->device_attribute(&major, CU_CAPABILITY_MAJOR, x->device),
                          "asking the GPU"));
    TRY(attn_driver_check(cu, cu->device_attribute(&minor, CU_CAPABILITY_MINOR, x->device),
                          "asking the GPU"));
    TRY(attn_driver_check(cu,
                          cu->device_attribute(&x->multiprocessors, CU_MULTIPROCESSORS, x->device),
                          "asking the GPU"));
    TRY(attn_driver_check(cu, cu->device_attribute(&x->l2_bytes, CU_L2_BYTES, x->device),
                          "asking the GPU"));
    TRY(attn_driver_check(cu,
                          cu->device_attribute(&x->shared_bytes, CU_SHARED_BYTES_OPTIN, x->device),
                          "asking the GPU"));
    TRY(attn_driver_check(cu, cu->driver_version(&version), "asking the driver"));
    x->capability = 10 * major + minor;
    (void)snprintf(
        x->name, sizeof x->name, "%s, sm_%d, %d multiprocessors, %d MiB of L2, driver %d.%d", model,
        x->capability, x->multiprocessors, x->l2_bytes >> 20, version / 1000, version % 1000 / 10);
    return ATTN_OK;
}

/* The caller's current context if it is on this GPU, else the primary one. */
static attn_status choose_context(attn_cuda *x)
{
    const attn_driver *cu = x->driver;
    cu_device device = -1;
    TRY(attn_driver_check(cu, cu->context_current(&x->context), "asking for the current context"));
    if (x->context != NULL && cu->context_device(&device) == 0 && device == x->device) {
        return ATTN_OK;
    }
    TRY(attn_driver_check(cu, cu->primary_retain(&x->context, x->device),
                          "retaining the GPU's primary context"));
    x->primary = true;
    return ATTN_OK;
}

/* Looks every kernel up and has the driver load it now, since loading later could disturb a graph
 * capture. */
static attn_status load_kernels(attn_cuda *x)
{
    static const unsigned char *const images[ATTN_CUDA_FAMILIES] = {
        attn_image_forward_sm90, attn_image_forward_sm90_steps, attn_image_forward_sm80,
        attn_image_forward_generic};
    const attn_driver *cu = x->driver;
    for (int i = x->capability == 90 ? ATTN_CUDA_SM90 : ATTN_CUDA_SM80; i < ATTN_CUDA_FAMILIES;
         i++) {
        TRY(attn_driver_check(
            cu, cu->library_load(&x->images[i], images[i], NULL, NULL, 0, NULL, NULL, 0),
            "loading kernels"));
    }
    for (int i = 0; i < ATTN_CUDA_KERNELS; i++) {
        const attn_cuda_kernel *k = &attn_cuda_kernels[i];
        cu_library image = x->images[k->family];
        cu_function function;
        if (image == NULL || k->shared_bytes > x->shared_bytes) {
            continue;
        }
        TRY(attn_driver_check(cu, cu->library_kernel(&x->kernels[i], image, k->name), k->name));
        TRY(attn_driver_check(cu,
                              cu->kernel_set_attribute(CU_KERNEL_MAX_DYNAMIC_SHARED_BYTES,
                                                       k->shared_bytes, x->kernels[i], x->device),
                              k->name));
        TRY(attn_driver_check(cu, cu->kernel_function(&function, x->kernels[i]), k->name));
    }
    return ATTN_OK;
}

static attn_status fill(attn_cuda *x, int32_t ordinal)
{
    TRY(attn_driver_get(&x->driver));
    TRY(describe(x, ordinal));
    if (x->capability < 80) {
        return attn_fail(ATTN_ERR_UNSUPPORTED, "%s: sm_80 or newer is needed", x->name);
    }
    TRY(choose_context(x));
    cu_context before;
    TRY(attn_driver_check(x->driver, x->driver->context_push(x->context),
                          "entering the GPU's context"));
    attn_status status = load_kernels(x);
    (void)x->driver->context_pop(&before);
    return status;
}

attn_status attn_cuda_create(attn_cuda **cuda, int32_t ordinal, const attn_allocator *allocator)
{
    attn_cuda *x = allocator->alloc(allocator->user, BYTES, 64);
    *cuda = NULL;
    if (x == NULL) {
        return attn_fail(ATTN_ERR_OUT_OF_MEMORY, "no memory for a GPU context of %zu bytes", BYTES);
    }
    memset(x, 0, sizeof *x);
    attn_status status = fill(x, ordinal);
    if (status != ATTN_OK) {
        attn_cuda_destroy(x, allocator);
        return status;
    }
    *cuda = x;
    return ATTN_OK;
}

void attn_cuda_destroy(attn_cuda *x, const attn_allocator *allocator)
{
    if (x == NULL) {
        return;
    }
    for (int i = 0; i < ATTN_CUDA_FAMILIES; i++) {
        if (x->images[i] != NULL) {
            (void)x->driver->library_unload(x->images[i]);
        }
    }
    if (x->primary) {
        (void)x->driver->primary_release(x->device);
    }
    allocator->free(allocator->user, x, BYTES);
}

const char *attn_cuda_name(const attn_cuda *cuda)
{
    return cuda->name;
}
