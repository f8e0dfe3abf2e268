/*
 * accepted.h: checks of an array that a reader accepted, or of its sentence if it refused. Shared
 * by fuzz_npy.c and fuzz_safetensors.c.
 */
#ifndef TESTS_FUZZ_ACCEPTED_H
#define TESTS_FUZZ_ACCEPTED_H

#include "array_file.h"
#include <string.h>

#define REQUIRE(condition)    \
    do {                      \
        if (!(condition)) {   \
            __builtin_trap(); \
        }                     \
    } while (0)

/* Every element can be read, the strides of a contiguous array reach the last one, and bytes fit
 * shape and type. */
static void check_accepted(const array_file *f)
{
    int64_t count = 1, last = 0;
    volatile unsigned char sum = 0;
    REQUIRE(f->ndim >= 0 && f->ndim <= ARRAY_FILE_MAX_DIMS && attn_dtype_size(f->dtype) > 0);
    for (int a = 0; a < f->ndim; a++) {
        REQUIRE(f->shape[a] >= 0);
        count *= f->shape[a];
        last += (f->shape[a] - 1) * f->stride[a];
    }
    REQUIRE((size_t)count * attn_dtype_size(f->dtype) == f->bytes);
    REQUIRE(count == 0 ||
            (last == count - 1 && (uintptr_t)f->data % attn_dtype_size(f->dtype) == 0));
    for (size_t i = 0; i < f->bytes; i++) {
        sum = (unsigned char)(sum + ((const unsigned char *)f->data)[i]);
    }
}

static void check_refused(const array_file *f, const char *error)
{
    REQUIRE(f->map == NULL && strlen(error) > strlen("/proc/self/fd/") &&
            strchr(error, '\n') == NULL);
}

#endif
