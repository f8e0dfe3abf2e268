/*
 * xla.h: the part of XLA's foreign function interface 0.3 that the binding reads: the frame of a
 * call, its buffers and attributes, how an error is made, and a GPU's stream and memory. The
 * layouts are XLA's (xla/ffi/api/c_api.h, which jax.ffi.include_dir() has); names are shortened. A
 * test compares them with that file.
 */
#ifndef LIBATTN_XLA_H
#define LIBATTN_XLA_H

#include <stddef.h>
#include <stdint.h>

enum { XLA_MAJOR = 0, XLA_MINOR = 1 }; /* the oldest version with all of this */
enum { XLA_METADATA = 1 };             /* type of an extension */
enum { XLA_ATTR_SCALAR = 3, XLA_ATTR_STRING = 4 };
enum { XLA_EXECUTE = 3 }; /* stage */
enum {
    XLA_INVALID_ARGUMENT = 3,
    XLA_RESOURCE_EXHAUSTED = 8,
    XLA_UNIMPLEMENTED = 12,
    XLA_INTERNAL = 13
};

enum {
    XLA_PRED = 1,
    XLA_S8 = 2,
    XLA_S32 = 4,
    XLA_S64 = 5,
    XLA_U8 = 6,
    XLA_U32 = 8,
    XLA_F16 = 10,
    XLA_F32 = 11,
    XLA_F64 = 12,
    XLA_BF16 = 16
};

typedef struct xla_error xla_error;

typedef struct xla_extension {
    size_t struct_size;
    int type;
    struct xla_extension *next;
} xla_extension;

typedef struct xla_version {
    size_t struct_size;
    xla_extension *extensions;
    int major, minor;
} xla_version;

typedef struct xla_metadata {
    size_t struct_size;
    xla_version version;
    uint32_t traits;
} xla_metadata;

typedef struct xla_metadata_extension {
    xla_extension base;
    xla_metadata *metadata;
} xla_metadata_extension;

typedef struct xla_error_args {
    size_t struct_size;
    xla_extension *extensions;
    const char *message;
    int code;
} xla_error_args;

typedef struct xla_stream_args {
    size_t struct_size;
    xla_extension *extensions;
    void *context;
    void *stream;
} xla_stream_args;

typedef struct xla_allocate_args {
    size_t struct_size;
    xla_extension *extensions;
    void *context;
    size_t size, alignment;
    void *data;
} xla_allocate_args;

typedef struct xla_free_args {
    size_t struct_size;
    xla_extension *extensions;
    void *context;
    size_t size;
    void *data;
} xla_free_args;

typedef struct xla_ordinal_args {
    size_t struct_size;
    xla_extension *extensions;
    void *context;
    int32_t ordinal;
} xla_ordinal_args;

typedef struct xla_api {
    size_t struct_size;
    xla_extension *extensions;
    xla_version version;
    const void *internal;
    xla_error *(*error_create)(xla_error_args *args);
    void (*error_functions[3])(void);
    xla_error *(*stream_get)(xla_stream_args *args);
    void (*state_functions[4])(void);
    xla_error *(*memory_allocate)(xla_allocate_args *args);
    xla_error *(*memory_free)(xla_free_args *args);
    void (*thread_functions[6])(void);
    xla_error *(*ordinal_get)(xla_ordinal_args *args);
} xla_api;

typedef struct xla_buffer {
    size_t struct_size;
    xla_extension *extensions;
    int dtype;
    void *data;
    int64_t rank;
    int64_t *dims;
} xla_buffer;

typedef struct xla_text {
    const char *data;
    size_t length;
} xla_text;

typedef struct xla_scalar {
    int dtype;
    void *value;
} xla_scalar;

typedef struct xla_buffers {
    size_t struct_size;
    xla_extension *extensions;
    int64_t count;
    int *types;
    xla_buffer **buffers;
} xla_buffers;

typedef struct xla_attributes {
    size_t struct_size;
    xla_extension *extensions;
    int64_t count;
    int *types;
    xla_text **names;
    void **values;
} xla_attributes;

typedef struct xla_frame {
    size_t struct_size;
    xla_extension *extensions;
    const xla_api *api;
    void *context;
    int stage;
    xla_buffers operands, results;
    xla_attributes attributes;
} xla_frame;

#endif
