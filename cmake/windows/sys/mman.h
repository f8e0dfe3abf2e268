/*
 * mman.h: stands in for the system's header: pages by VirtualAlloc and VirtualProtect (posix.c).
 */
#ifndef STAND_IN_MMAN_H
#define STAND_IN_MMAN_H

#include <stddef.h>

enum { PROT_NONE, PROT_READ, PROT_WRITE, MAP_PRIVATE = 2, MAP_NORESERVE = 0, MAP_ANONYMOUS = 32 };
#define MAP_FAILED ((void *)-1)

void *mmap(void *at, size_t bytes, int protection, int flags, int file, long offset);
int mprotect(void *at, size_t bytes, int protection);
int munmap(void *at, size_t bytes);

#endif
