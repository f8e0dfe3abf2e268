/*
 * array_file.h: one array in a file: shape, strides, type, and the place of its elements in memory.
 *
 * Shared by npy.h and safetensors.h: a read-only mapping, the arithmetic of shapes, and writing a
 * file as a whole or not at all. No format is known here. Files are untrusted: every function
 * answers false at once, with one sentence "path: reason" in error[size], and without memory in
 * proportion to the claims of a header. (A file that another process cuts while it is mapped still
 * raises SIGBUS, as with every mapping.)
 */
#ifndef SUPPORT_ARRAY_FILE_H
#define SUPPORT_ARRAY_FILE_H

#include <attn/attn.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ARRAY_FILE_MAX_DIMS = 8 };

typedef struct array_file {
    int ndim;
    int64_t shape[ARRAY_FILE_MAX_DIMS];
    int64_t stride[ARRAY_FILE_MAX_DIMS]; /* in elements; Fortran order is a matter of strides */
    int32_t dtype;                       /* attn_dtype */
    const void *data;                    /* aligned to the element size; inside the mapping */
    size_t bytes;                        /* of the elements; 0 is legal */
    void *map;                           /* private: the mapping */
    size_t map_bytes;
} array_file;

/* Unmaps. Harmless on a zeroed struct and after a failed open. */
void array_file_close(array_file *file);

/* ---- For the readers and writers of formats -------------------------------------------------- */

/* Writes "path: sentence" into error[size]. Returns false. */
bool array_file_fail(char *error, size_t size, const char *path, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Zeroes *f and maps all of the regular file at path, read-only. Never blocks on a FIFO. */
bool array_file_map(const char *path, array_file *file, char *error, size_t size);

/* Product of the extents times bits per element, in bytes; false if it leaves 63 bits or is not
 * whole. Extents of 0 count as 1 in the check for overflow, so that partial products (strides) fit
 * as well. */
bool array_file_size(int ndim, const int64_t *shape, int64_t bits, uint64_t *bytes);

/* Sets data, bytes and strides for the f->bytes bytes at `offset` of the mapping. The caller has
 * checked that they lie inside it and fit shape and dtype. Elements that are not aligned in the
 * file are copied into fresh pages. */
bool array_file_place(array_file *file, size_t offset, bool fortran, const char *path, char *error,
                      size_t size);

typedef struct array_file_part {
    const void *data;
    size_t bytes;
} array_file_part;

/* Writes the parts one after the other into a temporary file beside the target, syncs it, and
 * renames it to the target. A signal that ends the program meanwhile removes the temporary file. A
 * FIFO or device is written through. */
bool array_file_write(const char *path, const array_file_part *parts, int count, char *error,
                      size_t size);

/* The file that array_file_write(path) replaces: path with symbolic links followed, whether the
 * last one's target exists or not. False: too long, or links in a circle. */
bool array_file_target(const char *path, char target[PATH_MAX]);

/* True if the target can be created or written, as far as the system tells beforehand. */
bool array_file_can_write(const char *path);

#endif
