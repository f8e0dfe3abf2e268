/*
 * array_file.c: mapping a file, arithmetic of shapes. Writing is array_write.c.
 */
#include "array_file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

void array_file_close(array_file *file)
{
    if (file->map != NULL) {
        munmap(file->map, file->map_bytes);
    }
    memset(file, 0, sizeof *file);
}

bool array_file_fail(char *error, size_t size, const char *path, const char *format, ...)
{
    va_list list;
    int n = snprintf(error, size, "%s: ", path);
    if (n >= 0 && (size_t)n < size) {
        va_start(list, format);
        vsnprintf(error + n, size - (size_t)n, format, list);
        va_end(list);
    }
    for (char *c = error; size > 0 && *c != '\0'; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7f) {
            *c = '?'; /* names come from untrusted files: one line, no terminal escapes */
        }
    }
    return false;
}

bool array_file_map(const char *path, array_file *file, char *error, size_t size)
{
    struct stat st;
    memset(file, 0, sizeof *file);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) != 0) {
        array_file_fail(error, size, path, "%s", strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        array_file_fail(error, size, path, "not a regular file");
    } else if (st.st_size == 0) {
        array_file_fail(error, size, path, "the file is empty");
    } else {
        void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            array_file_fail(error, size, path, "cannot be mapped: %s", strerror(errno));
        } else {
            file->map = map;
            file->map_bytes = (size_t)st.st_size;
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    return file->map != NULL;
}

bool array_file_size(int ndim, const int64_t *shape, int64_t bits, uint64_t *bytes)
{
    int64_t product = bits;
    bool empty = false;
    for (int a = 0; a < ndim; a++) {
        if (shape[a] < 0 ||
            __builtin_mul_overflow(product, shape[a] == 0 ? 1 : shape[a], &product)) {
            return false;
        }
        empty |= shape[a] == 0;
    }
    *bytes = empty ? 0 : (uint64_t)product / 8;
    return empty || product % 8 == 0;
}

bool array_file_place(array_file *file, size_t offset, bool fortran, const char *path, char *error,
                      size_t size)
{
    int64_t stride = 1;
    for (int i = 0; i < file->ndim; i++) {
        int a = fortran ? i : file->ndim - 1 - i;
        file->stride[a] = stride;
        stride *= file->shape[a];
    }
    file->data = (const char *)file->map + offset;
    if (file->bytes == 0 || offset % attn_dtype_size(file->dtype) == 0) {
        return true;
    }
    void *copy =
        mmap(NULL, file->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) {
        return array_file_fail(error, size, path, "no memory to align %zu bytes", file->bytes);
    }
    memcpy(copy, file->data, file->bytes);
    munmap(file->map, file->map_bytes);
    file->map = copy;
    file->map_bytes = file->bytes;
    file->data = copy;
    return true;
}
