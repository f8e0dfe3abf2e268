/*
 * fake_driver.c: see fake_driver.h.
 */
#include "fake_driver.h"
#include "cuda/forward/codes.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

fake_driver fake;

/* One image per family, and a kernel is its name. */
struct CUlib_st {
    int number;
};
static struct CUlib_st library;
static struct CUctx_st primary[FAKE_GPUS] = {{0}, {1}};
#define ATTN_FAMILY(family, source) const unsigned char attn_image_##source[1];
#include "cuda/families.inc"

void fake_reset(void)
{
    fake = (fake_driver){.library = true, .version = 12010, .gpus = FAKE_GPUS, .capability = 90};
    fake.shared_bytes = 227 << 10;
}

attn_status fake_create(int ordinal, attn_context **context)
{
    attn_context_config config = {
        .struct_size = sizeof config, .device = ATTN_DEVICE_CUDA, .device_ordinal = ordinal};
    return attn_context_create(&config, context);
}

bool fake_keeps_nothing(void)
{
    return fake.retained == 0 && fake.loaded == 0;
}

void *fake_memory(int n)
{
    return (void *)((uintptr_t)(n + 1) << 50);
}

attn_forward_args fake_args(attn_dtype dtype, int64_t rows, int64_t keys, int64_t d)
{
    attn_forward_args args = {.struct_size = sizeof args};
    args.q = attn_tensor_bshd(fake_memory(0), dtype, 2, rows, 4, d);
    args.k = attn_tensor_bshd(fake_memory(1), dtype, 2, keys, 4, d);
    args.v = attn_tensor_bshd(fake_memory(2), dtype, 2, keys, 4, d);
    args.o = attn_tensor_bshd(fake_memory(3), dtype, 2, rows, 4, d);
    return args;
}

static cu_result answer(void)
{
    return ++fake.calls == fake.fail_at ? FAKE_ERROR : 0;
}

/* ---- The entry points ------------------------------------------------------------------------ */

#define DECLARE(name, symbol, args) static cu_result fake_##name args;
ATTN_CU_ENTRIES(DECLARE)

static cu_result fake_init(unsigned flags)
{
    (void)flags;
    return fake.init;
}

static cu_result fake_driver_version(int *version)
{
    *version = fake.version;
    return answer();
}

static cu_result fake_error_name(cu_result error, const char **name)
{
    *name = error == FAKE_ERROR ? "CUDA_ERROR_FAKE" : "CUDA_ERROR_OTHER";
    return 0;
}

static cu_result fake_error_string(cu_result error, const char **sentence)
{
    (void)error;
    *sentence = "it was told to fail";
    return 0;
}

static cu_result fake_device_get(cu_device *device, int ordinal)
{
    *device = ordinal;
    return answer();
}

static cu_result fake_device_count(int *count)
{
    *count = fake.gpus;
    return answer();
}

static cu_result fake_device_name(char *name, int size, cu_device device)
{
    (void)snprintf(name, (size_t)size, "Fake %d", device);
    return answer();
}

static cu_result fake_device_attribute(int *value, int attribute, cu_device device)
{
    (void)device;
    *value = attribute == CU_MULTIPROCESSORS      ? 132
             : attribute == CU_L2_BYTES           ? 60 << 20
             : attribute == CU_CAPABILITY_MAJOR   ? fake.capability / 10
             : attribute == CU_CAPABILITY_MINOR   ? fake.capability % 10
             : attribute == CU_SHARED_BYTES_OPTIN ? fake.shared_bytes
                                                  : -1;
    return answer();
}

static cu_result fake_primary_retain(cu_context *context, cu_device device)
{
    cu_result result = answer();
    if (result == 0) {
        *context = &primary[device];
        fake.retained++;
    }
    return result;
}

static cu_result fake_primary_release(cu_device device)
{
    (void)device;
    fake.retained--;
    return 0;
}

static cu_result fake_context_current(cu_context *context)
{
    *context = fake.depth > 0 ? fake.stack[fake.depth - 1] : NULL;
    return answer();
}

static cu_result fake_context_device(cu_device *device)
{
    if (fake.depth == 0) {
        return FAKE_ERROR;
    }
    *device = fake.stack[fake.depth - 1]->device;
    return answer();
}

static cu_result fake_context_push(cu_context context)
{
    cu_result result = answer();
    if (result == 0) {
        fake.stack[fake.depth++] = context;
        fake.pushes++;
    }
    return result;
}

static cu_result fake_context_pop(cu_context *context)
{
    *context = fake.stack[--fake.depth];
    return 0;
}

static cu_result fake_library_load(cu_library *loaded, const void *image, void *jit_names,
                                   void **jit_values, unsigned jit_count, void *names,
                                   void **values, unsigned count)
{
    (void)image, (void)jit_names, (void)jit_values, (void)jit_count, (void)names, (void)values,
        (void)count;
    cu_result result = fake.depth > 0 ? answer() : FAKE_ERROR;
    if (result == 0) {
        *loaded = &library;
        fake.loaded++;
    }
    return result;
}

static cu_result fake_library_unload(cu_library unloaded)
{
    (void)unloaded;
    fake.loaded--;
    return 0;
}

/* The handle of a kernel is the address of its name. */
const attn_cuda_kernel *fake_kernel(void)
{
    for (int i = 0; i < ATTN_CUDA_KERNELS; i++) {
        if (attn_cuda_kernels[i].name == fake.last.kernel) {
            return &attn_cuda_kernels[i];
        }
    }
    return NULL;
}

static cu_result fake_library_kernel(cu_kernel *kernel, cu_library of, const char *name)
{
    (void)of;
    *kernel = (cu_kernel)(uintptr_t)name;
    return answer();
}

static cu_result fake_kernel_function(cu_function *function, cu_kernel kernel)
{
    *function = (cu_function)(void *)kernel;
    return answer();
}

static cu_result fake_kernel_set_attribute(int attribute, int value, cu_kernel kernel,
                                           cu_device device)
{
    (void)kernel, (void)device;
    bool can = attribute == CU_KERNEL_MAX_DYNAMIC_SHARED_BYTES && value <= fake.shared_bytes;
    return can ? answer() : FAKE_ERROR;
}

static cu_result fake_set_words(unsigned long long address, unsigned value, size_t count,
                                cu_stream stream)
{
    (void)value, (void)stream;
    fake.cleared = address, fake.cleared_words = count;
    return fake.depth > 0 && address % sizeof(uint32_t) == 0 ? answer() : FAKE_ERROR;
}

/* The limits of a launch on every GPU, and of its shared memory on this one. */
static bool fits(const cu_launch_config *config)
{
    enum { GRID_YZ = 65535, THREADS = 1024 };
    const uint32_t *grid = config->grid, *block = config->block;
    return grid[0] > 0 && grid[0] <= INT32_MAX && grid[1] > 0 && grid[1] <= GRID_YZ &&
           grid[2] > 0 && grid[2] <= GRID_YZ && block[0] > 0 && block[0] <= THREADS &&
           block[1] == 1 && block[2] == 1 && config->shared_bytes <= (uint32_t)fake.shared_bytes;
}

static cu_result fake_launch(const cu_launch_config *config, cu_function function, void **params,
                             void **extra)
{
    const uint32_t *grid = config->grid, *block = config->block;
    bool can = function != NULL && fake.depth > 0 && params != NULL && extra == NULL;
    cu_result result = can && fits(config) ? answer() : FAKE_ERROR;
    if (result == 0) {
        fake.last = (fake_launched){(const char *)function,      fake.stack[fake.depth - 1]->device,
                                    grid[0] * grid[1] * grid[2], block[0] * block[1] * block[2],
                                    config->shared_bytes,        config->stream,
                                    {.counter = NULL},           {{.data = NULL}}};
        const attn_cuda_kernel *kernel = fake_kernel();
        if (kernel && strncmp(kernel->name, "attn_forward_", 13) == 0) {
            fake.last.params = *(const attn_cuda_forward_params *)params[0];
        }
        if (fake.launches < 4) {
            fake.kernels[fake.launches] = fake.last.kernel;
        }
        if (kernel && kernel->family == ATTN_CUDA_APPENDS) {
            fake.append = *(const attn_cuda_append_params *)params[0];
        }
        if (kernel && kernel->family == ATTN_CUDA_ELEMENTWISE) {
            fake.elements = *(const attn_cuda_elements_params *)params[0];
        }
        if (kernel &&
            (kernel->family == ATTN_CUDA_CODES || kernel->family == ATTN_CUDA_FEW ||
             kernel->family == ATTN_CUDA_FEW_SHARED || kernel->family == ATTN_CUDA_FEW_LINE)) {
            const attn_cuda_codes_params *codes = params[0];
            const attn_tensor all[] = {codes->k_scale, codes->k_shift, codes->v_scale,
                                       codes->v_shift};
            memcpy(fake.last.factors, all, sizeof all);
        }
        fake.launches++;
        if (fake.see != NULL) {
            fake.see(kernel, config, params[0]);
        }
    }
    return result;
}

static cu_result fake_tensor_map(attn_tensor_map *map, int type, uint32_t rank, void *address,
                                 const uint64_t *extents, const uint64_t *strides,
                                 const uint32_t *box, const uint32_t *element_strides,
                                 int interleave, int swizzle, int promotion, int fill)
{
    enum { ELEMENT = 2, SWIZZLED = 128 }; /* bytes of an element, of columns of a box */
    (void)map, (void)interleave, (void)promotion, (void)fill;
    bool can = fake.depth > 0 && (rank == 4 || rank == 5) && (uintptr_t)address % 16 == 0 &&
               type == CU_TENSOR_U16 && swizzle == CU_SWIZZLE_128B &&
               box[0] * ELEMENT <= SWIZZLED && box[0] * ELEMENT % 16 == 0;
    uint32_t rows = 1;
    for (uint32_t i = 0; i < rank; i++) { /* as the driver's manual has it */
        can &= extents[i] > 0 && extents[i] <= UINT64_C(1) << 32 && box[i] > 0 && box[i] <= 256;
        can &= element_strides[i] == 1 &&
               (i == 0 || (strides[i - 1] % 16 == 0 && strides[i - 1] < UINT64_C(1) << 40));
        rows *= i > 0 ? box[i] : 1;
    }
    fake.box_rows[fake.maps++ % 5] = rows;
    return can ? answer() : FAKE_ERROR;
}

/* ---- dlopen, dlsym and dlerror --------------------------------------------------------------- */

void *fake_dlopen(const char *name, int flags)
{
    (void)flags;
    return fake.library && strcmp(name, "libcuda.so.1") == 0 ? &fake : NULL;
}

char *fake_dlerror(void)
{
    static char sentence[] = "there is none";
    return sentence;
}

void *fake_dlsym(void *handle, const char *symbol)
{
    static const struct {
        const char *symbol;
        size_t at;
    } entries[] = {
#define ENTRY(name, symbol, args) {symbol, offsetof(attn_driver, name)},
        ATTN_CU_ENTRIES(ENTRY)};
    static const attn_driver functions = {
#define FUNCTION(name, symbol, args) .name = fake_##name,
        ATTN_CU_ENTRIES(FUNCTION)};
    void *address = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        if (handle == &fake && strcmp(symbol, entries[i].symbol) == 0) {
            memcpy(&address, (const char *)&functions + entries[i].at, sizeof address);
        }
    }
    return fake.lacks != NULL && strcmp(symbol, fake.lacks) == 0 ? NULL : address;
}
