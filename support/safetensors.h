/*
 * safetensors.h: .safetensors files: a JSON header with name, type, shape and place of each tensor,
 * then their bytes.
 *
 * The whole header is checked before any tensor is given out, by the format's own rules: at most
 * 100 MB, names unique, the tensors' byte ranges tile the data exactly (no gap, no overlap, no byte
 * left), each as long as its shape says. Read: F64 F32 F16 BF16 BOOL I32 I64 U8 I8; tensors of
 * other types may stand beside them.
 */
#ifndef SUPPORT_SAFETENSORS_H
#define SUPPORT_SAFETENSORS_H

#include "array_file.h"

/* Opens the tensor of that name. Close with array_file_close; on failure nothing is left open. */
bool safetensors_open(const char *path, const char *name, array_file *file, char *error,
                      size_t size);

/* Calls visit for each name, in the order of their bytes. */
bool safetensors_names(const char *path, void (*visit)(void *user, const char *name), void *user,
                       char *error, size_t size);

/* Writes tensors[i] (ndim, shape, dtype and data count; contiguous in C order) as names[i], in that
 * order. The file appears whole or not at all. */
bool safetensors_write(const char *path, int count, const char *const *names,
                       const array_file *tensors, char *error, size_t size);

#endif
