/*
 * driver.h: the part of the CUDA driver that libattn uses, found with dlopen when a GPU is first
 * asked for. No CUDA header and no CUDA library is needed to build or to run; a machine without a
 * driver is a normal answer. Declarations follow the driver API of CUDA 12 (cuda.h), which is
 * stable.
 */
#ifndef ATTN_CUDA_DRIVER_H
#define ATTN_CUDA_DRIVER_H

#include "cuda/params.h"

typedef int cu_result; /* 0 = success */
typedef int cu_device;
typedef struct CUctx_st *cu_context;
typedef struct CUlib_st *cu_library;
typedef struct CUkern_st *cu_kernel;
typedef struct CUfunc_st *cu_function;
typedef struct CUstream_st *cu_stream;

/* CU_DEVICE_ATTRIBUTE_... */
enum {
    CU_MULTIPROCESSORS = 16,
    CU_L2_BYTES = 38,
    CU_CAPABILITY_MAJOR = 75,
    CU_CAPABILITY_MINOR = 76,
    CU_SHARED_BYTES_OPTIN = 97,
};
enum { CU_KERNEL_MAX_DYNAMIC_SHARED_BYTES = 8 }; /* CU_FUNC_ATTRIBUTE_... */
enum { CU_TENSOR_U16 = 1, CU_SWIZZLE_128B = 3, CU_PROMOTION_128B = 2 };

/* CUlaunchAttribute, CUlaunchConfig */
enum { CU_BEGIN_EARLY = 6 }; /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
typedef struct cu_launch_attribute {
    int32_t id, unused;
    union {
        char bytes[64];
        int32_t number;
    } value;
} cu_launch_attribute;
typedef struct cu_launch_config {
    uint32_t grid[3], block[3], shared_bytes;
    struct CUstream_st *stream;
    const cu_launch_attribute *attributes;
    uint32_t count; /* of attributes */
} cu_launch_config;

/* One line per entry point: name, exported symbol, arguments. */
#define ATTN_CU_ENTRIES(X)                                                                     \
    X(init, "cuInit", (unsigned flags))                                                        \
    X(driver_version, "cuDriverGetVersion", (int *version))                                    \
    X(error_name, "cuGetErrorName", (cu_result error, const char **name))                      \
    X(error_string, "cuGetErrorString", (cu_result error, const char **sentence))              \
    X(device_get, "cuDeviceGet", (cu_device * device, int ordinal))                            \
    X(device_count, "cuDeviceGetCount", (int *count))                                          \
    X(device_name, "cuDeviceGetName", (char *name, int size, cu_device device))                \
    X(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, cu_device device)) \
    X(primary_retain, "cuDevicePrimaryCtxRetain", (cu_context * context, cu_device device))    \
    X(primary_release, "cuDevicePrimaryCtxRelease_v2", (cu_device device))                     \
    X(context_current, "cuCtxGetCurrent", (cu_context * context))                              \
    X(context_device, "cuCtxGetDevice", (cu_device * device))                                  \
    X(context_push, "cuCtxPushCurrent_v2", (cu_context context))                               \
    X(context_pop, "cuCtxPopCurrent_v2", (cu_context * context))                               \
    X(library_load, "cuLibraryLoadData",                                                       \
      (cu_library * library, const void *image, void *jit_names, void **jit_values,            \
       unsigned jit_count, void *names, void **values, unsigned count))                        \
    X(library_unload, "cuLibraryUnload", (cu_library library))                                 \
    X(library_kernel, "cuLibraryGetKernel",                                                    \
      (cu_kernel * kernel, cu_library library, const char *name))                              \
    X(kernel_function, "cuKernelGetFunction", (cu_function * function, cu_kernel kernel))      \
    X(kernel_set_attribute, "cuKernelSetAttribute",                                            \
      (int attribute, int value, cu_kernel kernel, cu_device device))                          \
    X(set_words, "cuMemsetD32Async",                                                           \
      (unsigned long long address, unsigned value, size_t count, cu_stream stream))            \
    X(launch, "cuLaunchKernelEx",                                                              \
      (const cu_launch_config *config, cu_function function, void **params, void **extra))     \
    X(tensor_map, "cuTensorMapEncodeTiled",                                                    \
      (attn_tensor_map * map, int type, uint32_t rank, void *address, const uint64_t *extents, \
       const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,          \
       int interleave, int swizzle, int promotion, int fill))

typedef struct attn_driver {
#define ATTN_CU_MEMBER(name, symbol, args) cu_result(*name) args;
    ATTN_CU_ENTRIES(ATTN_CU_MEMBER)
#undef ATTN_CU_MEMBER
} attn_driver;

/* Gives the initialised driver; the same table every time. Errors: unsupported (no driver, too old,
 * no GPU). */
attn_status attn_driver_get(const attn_driver **driver);

/* Makes a status of a driver's answer. what: the attempt, for the sentence. */
attn_status attn_driver_check(const attn_driver *driver, cu_result result, const char *what);

#endif
