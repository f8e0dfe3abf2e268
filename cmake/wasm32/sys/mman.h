/*
 * mman.h: stands in for the system's header where memory has no protection: maps are plain memory,
 * guard pages guard nothing.
 */
#ifndef WASM32_MMAN_H
#define WASM32_MMAN_H

#include <stdlib.h>

enum { PROT_NONE, PROT_READ, PROT_WRITE, MAP_PRIVATE = 2, MAP_NORESERVE = 0, MAP_ANONYMOUS = 32 };
#define MAP_FAILED ((void *)-1)

static inline void *mmap(void *at, size_t bytes, int protection, int flags, int file, long offset)
{
    (void)at, (void)protection, (void)flags, (void)file, (void)offset;
    void *memory = aligned_alloc(65536, (bytes + 65535) / 65536 * 65536);
    return memory != NULL ? memory : MAP_FAILED;
}

static inline int mprotect(void *at, size_t bytes, int protection)
{
    (void)at, (void)bytes, (void)protection;
    return 0;
}

static inline int munmap(void *at, size_t bytes)
{
    (void)bytes;
    free(at);
    return 0;
}

#endif
