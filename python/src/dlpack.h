/*
 * dlpack.h: the part of DLPack 1.3 that the binding reads: tensors, their capsules, and the table
 * of functions that a type publishes as __dlpack_c_exchange_api__.
 */
#ifndef LIBATTN_DLPACK_H
#define LIBATTN_DLPACK_H

#include <stdint.h>

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13 };
enum {
    DL_INT = 0,
    DL_UINT = 1,
    DL_FLOAT = 2,
    DL_BFLOAT = 4,
    DL_BOOL = 6,
    DL_E4M3 = 10, /* without infinities */
    DL_E5M2 = 12
};
enum { DL_READ_ONLY = 1 };

typedef struct dl_version {
    uint32_t major, minor;
} dl_version;

typedef struct dl_device {
    int32_t type, id;
} dl_device;

typedef struct dl_dtype {
    uint8_t code, bits;
    uint16_t lanes;
} dl_dtype;

typedef struct dl_tensor {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_dtype dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: contiguous */
    uint64_t byte_offset;
} dl_tensor;

/* Content of a capsule "dltensor"; what follows the tensor is its producer's. */
typedef struct dl_managed {
    dl_tensor tensor;
    void *manager;
    void (*deleter)(struct dl_managed *self);
} dl_managed;

/* Content of a capsule "dltensor_versioned". */
typedef struct dl_managed_versioned {
    dl_version version;
    void *manager;
    void (*deleter)(struct dl_managed_versioned *self);
    uint64_t flags;
    dl_tensor tensor;
} dl_managed_versioned;

typedef struct dl_exchange_header {
    dl_version version;
    struct dl_exchange_header *previous;
} dl_exchange_header;

/* Functions of a framework. They return 0, or -1 with a Python exception set; none synchronises. */
typedef struct dl_exchange {
    dl_exchange_header header;
    int (*allocate)(dl_tensor *prototype, dl_managed_versioned **out, void *user,
                    void (*set_error)(void *user, const char *kind, const char *message));
    int (*managed_from_object)(void *object, dl_managed_versioned **out);
    int (*managed_to_object)(dl_managed_versioned *tensor, void **object); /* takes the tensor */
    int (*tensor_from_object)(void *object, dl_tensor *out);               /* NULL: not there */
    int (*current_stream)(int32_t device_type, int32_t device_id, void **stream);
} dl_exchange;

#endif
