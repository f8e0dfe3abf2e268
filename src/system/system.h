/*
 * system.h: the operating system as the library sees it: threads and locks, processes, memory,
 * shared libraries, cores and caches. This folder alone calls the system (style.system):
 * posix.c with linux.c or darwin.c, windows.c, or single.c where a program has one thread.
 */
#ifndef ATTN_SYSTEM_H
#define ATTN_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 1 where the C library's exp and log on x86-64 compute on the x87 unit. */
#ifdef _WIN32
#define ATTN_SYSTEM_X87 1
#else
#define ATTN_SYSTEM_X87 0
#endif

#if defined(ATTN_SINGLE)
typedef char attn_handle, attn_lock, attn_bell, attn_once;
#define ATTN_ONCE 0
#elif defined(_WIN32)
typedef void *attn_handle;
typedef struct attn_word {
    void *word; /* an SRWLOCK, a CONDITION_VARIABLE or an INIT_ONCE */
} attn_lock, attn_bell, attn_once;
#define ATTN_ONCE \
    {             \
        NULL      \
    }
#else
#include <pthread.h>
typedef pthread_t attn_handle;
typedef pthread_mutex_t attn_lock;
typedef pthread_cond_t attn_bell;
typedef pthread_once_t attn_once;
#define ATTN_ONCE PTHREAD_ONCE_INIT
#endif

/* ---- threads --------------------------------------------------------------------------------- */

/* A thread that runs run(arg), without the host's signals. The struct stays where it is until the
 * thread has been joined. */
typedef struct attn_thread {
    void (*run)(void *arg);
    void *arg;
    attn_handle handle;
} attn_thread;

/* False if the system refuses. */
bool attn_thread_start(attn_thread *thread);
void attn_thread_join(attn_thread *thread);

bool attn_lock_init(attn_lock *lock); /* false if the system refuses */
void attn_lock_destroy(attn_lock *lock);
void attn_lock_take(attn_lock *lock);
void attn_lock_give(attn_lock *lock);

/* A bell on which threads wait with a lock held; waiting gives the lock up in between. */
void attn_bell_init(attn_bell *bell);
void attn_bell_destroy(attn_bell *bell);
void attn_bell_wait(attn_bell *bell, attn_lock *lock);
void attn_bell_ring(attn_bell *bell); /* wakes all */

/* Calls `work` unless this was done; all callers return after it. *once begins as ATTN_ONCE. */
void attn_once_call(attn_once *once, void (*work)(void));

/* A number of this process, never 0. A child of fork() has another one than its parent, from the
 * first call on, even where PID namespaces give both the same PID. */
uint64_t attn_process(void);

/* ---- memory and libraries -------------------------------------------------------------------- */

/* NULL without memory. alignment: a power of two; bytes: a multiple of it. */
void *attn_memory_alloc(size_t alignment, size_t bytes);
void attn_memory_free(void *memory);

/* Opens a shared library for the life of the process; NULL, and a sentence, if it cannot. */
void *attn_library_open(const char *name, const char **error);
void *attn_library_symbol(void *library, const char *symbol); /* NULL: it has none */

/* ---- the machine ----------------------------------------------------------------------------- */

/* Number of cores in this thread's affinity, or fewer if a quota gives their time to others. At
 * least 1. */
int32_t attn_system_cores(void);

/* The core that runs this thread; -1: not known. */
int32_t attn_system_core(void);

/* Moves this thread off a core, to another one of its affinity if there is one. */
void attn_system_leave_core(int32_t core);

/* Linux. Number of cores, rounded up, whose time the control groups allow: the least of cpu.max
 * (version 2: "QUOTA PERIOD" or "max PERIOD", microseconds) in the group and in those around it.
 * groups: a file like /proc/self/cgroup; mount: the folder where groups are mounted. INT32_MAX
 * without a limit or a readable file. */
int32_t attn_system_quota(const char *groups, const char *mount);

/* Bytes of the data cache of a level from 1 to 3; 0 = unknown. */
int64_t attn_system_cache(int level);

/* True if it says that this is an Arm CPU with dot products of bf16 (FEAT_BF16). */
bool attn_system_bf16(void);

/* Asks for the state of AMX tiles, which the system hands out on request. A second request is
 * harmless. */
bool attn_system_tiles(void);

#endif
