/*
 * windows.c: Windows, from 7 on: see system.h. There is no fork.
 */
#include "system/system.h"
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <malloc.h>

/* ---- threads --------------------------------------------------------------------------------- */

static DWORD WINAPI begin(void *arg)
{
    const attn_thread *thread = arg;
    thread->run(thread->arg);
    return 0;
}

/* Keeps the library that a thread runs in where it is, whoever unloads it. */
bool attn_thread_start(attn_thread *thread)
{
    HMODULE module;
    (void)GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS,
                             (LPCWSTR)(uintptr_t)begin, &module);
    thread->handle = CreateThread(NULL, 0, begin, thread, 0, NULL);
    return thread->handle != NULL;
}

void attn_thread_join(attn_thread *thread)
{
    (void)WaitForSingleObject(thread->handle, INFINITE);
    (void)CloseHandle(thread->handle);
}

bool attn_lock_init(attn_lock *lock)
{
    InitializeSRWLock((SRWLOCK *)lock);
    return true;
}

void attn_lock_destroy(attn_lock *lock)
{
    (void)lock;
}

void attn_lock_take(attn_lock *lock)
{
    AcquireSRWLockExclusive((SRWLOCK *)lock);
}

void attn_lock_give(attn_lock *lock)
{
    ReleaseSRWLockExclusive((SRWLOCK *)lock);
}

void attn_bell_init(attn_bell *bell)
{
    InitializeConditionVariable((CONDITION_VARIABLE *)bell);
}

void attn_bell_destroy(attn_bell *bell)
{
    (void)bell;
}

void attn_bell_wait(attn_bell *bell, attn_lock *lock)
{
    (void)SleepConditionVariableSRW((CONDITION_VARIABLE *)bell, (SRWLOCK *)lock, INFINITE, 0);
}

void attn_bell_ring(attn_bell *bell)
{
    WakeAllConditionVariable((CONDITION_VARIABLE *)bell);
}

typedef struct once_work {
    void (*run)(void);
} once_work;

static BOOL CALLBACK run_once(INIT_ONCE *once, void *work, void **context)
{
    (void)once, (void)context;
    ((const once_work *)work)->run();
    return TRUE;
}

void attn_once_call(attn_once *once, void (*work)(void))
{
    once_work wrapped = {work};
    (void)InitOnceExecuteOnce((INIT_ONCE *)once, run_once, &wrapped, NULL);
}

uint64_t attn_process(void)
{
    return GetCurrentProcessId();
}

/* ---- memory and libraries -------------------------------------------------------------------- */

void *attn_memory_alloc(size_t alignment, size_t bytes)
{
    return _aligned_malloc(bytes, alignment);
}

void attn_memory_free(void *memory)
{
    _aligned_free(memory);
}

void *attn_library_open(const char *name, const char **error)
{
    void *library = LoadLibraryA(name);
    *error = library ? "" : "the library does not load";
    return library;
}

void *attn_library_symbol(void *library, const char *symbol)
{
    FARPROC address = GetProcAddress(library, symbol);
    return (void *)(uintptr_t)address;
}

/* ---- the machine ----------------------------------------------------------------------------- */

int32_t attn_system_cores(void)
{
    DWORD_PTR own, all;
    int32_t cores = 0;
    if (GetProcessAffinityMask(GetCurrentProcess(), &own, &all)) {
        for (; own != 0; own &= own - 1) {
            cores++;
        }
    }
    return cores > 0 ? cores : 1;
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
    SYSTEM_LOGICAL_PROCESSOR_INFORMATION found[256];
    DWORD bytes = sizeof found;
    if (!GetLogicalProcessorInformation(found, &bytes)) {
        return 0;
    }
    for (DWORD i = 0; i < bytes / sizeof found[0]; i++) {
        const CACHE_DESCRIPTOR *cache = &found[i].Cache;
        if (found[i].Relationship == RelationCache && cache->Level == level &&
            cache->Type != CacheInstruction) {
            return cache->Size;
        }
    }
    return 0;
}

bool attn_system_bf16(void)
{
    return false;
}

/* Windows 11 hands tiles out. They are not asked for: no such machine was at hand. */
bool attn_system_tiles(void)
{
    return false;
}
