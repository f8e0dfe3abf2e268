/*
 * arena.h: a block of scratch, laid out region by region: sizes are checked, regions begin at cache
 * lines. Plans lay out the workspace and the scratch of a thread with it; memory comes later.
 */
#ifndef ATTN_CORE_ARENA_H
#define ATTN_CORE_ARENA_H

#include "core/error.h"
#include <stdbool.h>

/* Size of all regions so far; overflow: it exceeds 64 bits. */
typedef struct attn_arena {
    uint64_t bytes;
    bool overflow;
} attn_arena;

/* Offset of a new region of rows x columns elements of `size` bytes. */
static inline uint64_t attn_arena_take(attn_arena *arena, int64_t rows, int64_t columns,
                                       uint64_t size)
{
    const uint64_t offset = arena->bytes;
    uint64_t bytes;
    arena->overflow |= __builtin_mul_overflow((uint64_t)rows, (uint64_t)columns, &bytes) ||
                       __builtin_mul_overflow(bytes, size, &bytes) ||
                       __builtin_add_overflow(bytes, 63, &bytes) ||
                       __builtin_add_overflow(offset, bytes & ~(uint64_t)63, &arena->bytes);
    return offset;
}

/* *bytes = memory that has room for the arena at the first cache line in it. name: for the error's
 * sentence. */
static inline attn_status attn_arena_room(const attn_arena *arena, const char *name,
                                          uint64_t *bytes)
{
    if (arena->overflow || __builtin_add_overflow(arena->bytes, 63, bytes)) {
        return attn_fail(ATTN_ERR_OVERFLOW, "the bytes of the %s do not fit in 64 bits", name);
    }
    return ATTN_OK;
}

#endif
