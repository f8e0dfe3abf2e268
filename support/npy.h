/*
 * npy.h: NumPy's .npy files, versions 1.0, 2.0 and 3.0 (NEP 1), read by mapping and written in C
 * order.
 *
 * Types: f2, f4, f8, i4, i8 (little-endian), b1, and V2, NumPy's word for the bfloat16 of
 * ml_dtypes. Refused with a sentence: big-endian and other types, structured types, more than 8
 * axes, bytes after the data.
 */
#ifndef SUPPORT_NPY_H
#define SUPPORT_NPY_H

#include "array_file.h"

/* Close with array_file_close; on failure nothing is left open. */
bool npy_open(const char *path, array_file *file, char *error, size_t size);

/* data is contiguous in C order. The file appears whole or not at all. */
bool npy_write(const char *path, int32_t dtype, int ndim, const int64_t *shape, const void *data,
               char *error, size_t size);

#endif
