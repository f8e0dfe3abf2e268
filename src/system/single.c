/*
 * single.c: a system with one thread, as WebAssembly's: locks are free, threads do not start. See
 * system.h.
 */
#include "system/system.h"
#include <stdlib.h>

bool attn_thread_start(attn_thread *thread)
{
    (void)thread;
    return false;
}

void attn_thread_join(attn_thread *thread)
{
    (void)thread;
}

bool attn_lock_init(attn_lock *lock)
{
    (void)lock;
    return true;
}

void attn_lock_destroy(attn_lock *lock)
{
    (void)lock;
}

void attn_lock_take(attn_lock *lock)
{
    (void)lock;
}

void attn_lock_give(attn_lock *lock)
{
    (void)lock;
}

void attn_bell_init(attn_bell *bell)
{
    (void)bell;
}

void attn_bell_destroy(attn_bell *bell)
{
    (void)bell;
}

void attn_bell_wait(attn_bell *bell, attn_lock *lock)
{
    (void)bell, (void)lock;
}

void attn_bell_ring(attn_bell *bell)
{
    (void)bell;
}

void attn_once_call(attn_once *once, void (*work)(void))
{
    if (!*once) {
        *once = 1;
        work();
    }
}

uint64_t attn_process(void)
{
    return 1;
}

void *attn_memory_alloc(size_t alignment, size_t bytes)
{
    return aligned_alloc(alignment, bytes);
}

void attn_memory_free(void *memory)
{
    free(memory);
}

void *attn_library_open(const char *name, const char **error)
{
    (void)name;
    *error = "no shared libraries";
    return NULL;
}

void *attn_library_symbol(void *library, const char *symbol)
{
    (void)library, (void)symbol;
    return NULL;
}

int32_t attn_system_cores(void)
{
    return 1;
}

int32_t attn_system_core(void)
{
    return -1;
}

void attn_system_leave_core(int32_t core)
{
    (void)core;
}

int64_t attn_system_cache(int level)
{
    (void)level;
    return 0;
}

bool attn_system_bf16(void)
{
    return false;
}

bool attn_system_tiles(void)
{
    return false;
}
