/*
 * fail.c: see fail.h.
 */
#include "fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void fail(int status, const char *format, ...)
{
    va_list list;
    fflush(stdout);
    va_start(list, format);
    fputs(isatty(STDERR_FILENO) ? "\r\033[Ktrain_gpt: " : "train_gpt: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    exit(status);
}

void *allocate(size_t count, size_t size)
{
    size_t bytes = (count * size + 63) / 64 * 64;
    void *memory = size == 0 || count <= SIZE_MAX / 2 / size
                       ? aligned_alloc(64, bytes > 0 ? bytes : 64)
                       : NULL;
    if (memory == NULL) {
        fail(EXIT_INTERNAL, "no memory for %zu times %zu bytes", count, size);
    }
    return memset(memory, 0, bytes);
}

void reserve(void **memory, uint64_t *bytes, uint64_t least)
{
    if (least > *bytes) {
        free(*memory);
        *memory = allocate(1, least);
        *bytes = least;
    }
}
