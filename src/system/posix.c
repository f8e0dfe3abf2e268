/*
 * posix.c: threads, locks, processes, memory and libraries of a POSIX system: see system.h.
 */
#define _GNU_SOURCE
#include "system/system.h"
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- threads --------------------------------------------------------------------------------- */

static void *begin(void *arg)
{
    const attn_thread *thread = arg;
    thread->run(thread->arg);
    return NULL;
}

bool attn_thread_start(attn_thread *thread)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&thread->handle, NULL, begin, thread) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

void attn_thread_join(attn_thread *thread)
{
    (void)pthread_join(thread->handle, NULL);
}

bool attn_lock_init(attn_lock *lock)
{
    return pthread_mutex_init(lock, NULL) == 0;
}

void attn_lock_destroy(attn_lock *lock)
{
    (void)pthread_mutex_destroy(lock);
}

void attn_lock_take(attn_lock *lock)
{
    (void)pthread_mutex_lock(lock);
}

void attn_lock_give(attn_lock *lock)
{
    (void)pthread_mutex_unlock(lock);
}

void attn_bell_init(attn_bell *bell)
{
    (void)pthread_cond_init(bell, NULL);
}

void attn_bell_destroy(attn_bell *bell)
{
    (void)pthread_cond_destroy(bell);
}

void attn_bell_wait(attn_bell *bell, attn_lock *lock)
{
    (void)pthread_cond_wait(bell, lock);
}

void attn_bell_ring(attn_bell *bell)
{
    (void)pthread_cond_broadcast(bell);
}

void attn_once_call(attn_once *once, void (*work)(void))
{
    (void)pthread_once(once, work);
}

/* ---- processes ------------------------------------------------------------------------------- */

/* Counts forks between the process that loaded the library and this one. A PID would cost a system
 * call, and in another PID namespace a child may have its parent's. */
static atomic_ullong forks;

static void count_fork(void)
{
    atomic_fetch_add(&forks, 1);
}

static void watch_forks(void)
{
    (void)pthread_atfork(NULL, NULL, count_fork);
}

uint64_t attn_process(void)
{
    static pthread_once_t watched = PTHREAD_ONCE_INIT;
    (void)pthread_once(&watched, watch_forks);
    return 1 + (uint64_t)atomic_load(&forks);
}

/* ---- memory and libraries -------------------------------------------------------------------- */

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
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    *error = library ? "" : dlerror();
    return library;
}

void *attn_library_symbol(void *library, const char *symbol)
{
    return dlsym(library, symbol);
}
