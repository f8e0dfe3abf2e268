/*
 * pool.c: one job at a time, for the caller and workers that spin briefly for the next job and then
 * sleep. Atomic counters hand its tasks out. Where they are many, thread t of n first takes tasks
 * t, t + n .., so that a job that runs again finds its data in the caches of the same cores, then
 * what is left of the others'. No lock is held while a task runs. A child of fork() has none of the
 * parent's threads and starts its own. Where the system refuses threads the caller runs all tasks.
 */
#include "cpu/machine/pool.h"
#include "system/system.h"
#include <stdatomic.h>

#if defined(__x86_64__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("yield")
#else
#define RELAX() ((void)0)
#endif

/* some tens of microseconds: longer than the gap between calls of a busy program */
enum { SPINS = 4000 };

enum {
    LINE = 64,
    LIST_TASKS = 4 /* the fewest of a thread that are worth a list of its own */
};

typedef struct pool_worker {
    struct attn_pool *pool;
    attn_thread handle;
    int32_t thread; /* its number, from 1 */
} pool_worker;

/* A thread's list: its next task, by a number within the list. */
typedef struct pool_list {
    _Alignas(LINE) atomic_llong next;
} pool_list;

struct attn_pool {
    int32_t threads;
    int32_t started;  /* workers that run */
    uint64_t process; /* owner of the threads; 0 = not started */
    /* the process that runs a job, 0 = none: a child of fork() finds its parent's here */
    _Atomic uint64_t busy;
    attn_lock lock; /* for sleeping and waking only */
    attn_bell wake;

    /* The job. A worker joins by adding itself to `inside` while `generation` is the one it saw.
     * What workers read while they wait, what each task changes, and what the caller waits for lie
     * in cache lines of their own. */
    _Alignas(LINE) atomic_uint generation; /* odd while a job runs */
    atomic_bool quit;
    bool apart;      /* a core for each thread */
    atomic_int core; /* the caller's */
    int64_t n;
    void (*task)(void *arg, int64_t i, int32_t thread);
    void *arg;
    pool_list *lists; /* [threads], behind the workers */
    _Alignas(LINE) atomic_int inside;
    atomic_int asleep; /* workers that need the bell */
    _Alignas(LINE) pool_worker workers[];
};

/* ---- workers --------------------------------------------------------------------------------- */

/* Few tasks are one list: nobody looks at others, whose lines come from core to core. */
static int64_t list_count(const attn_pool *pool)
{
    return pool->n / LIST_TASKS >= pool->threads ? pool->threads : 1;
}

/* Runs what is left of list `index` of `lists`. */
static void run_list(attn_pool *pool, int64_t index, int64_t lists, int32_t thread)
{
    atomic_llong *next = &pool->lists[index].next;
    const int64_t count = lists == 1 ? pool->n : (pool->n - index + lists - 1) / lists;
    int64_t i;
    do { /* who takes the last task knows it, and need not fetch the line of `next` once more */
        i = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
        if (i < count) {
            pool->task(pool->arg, index + i * lists, thread);
        }
    } while (i < count - 1);
}

/* The thread's own list, then others. */
static void run_tasks(attn_pool *pool, int32_t thread)
{
    const int64_t lists = list_count(pool), own = lists > 1 ? thread : 0;
    run_list(pool, own, lists, thread);
    for (int64_t i = own + 1; i < own + lists; i++) {
        run_list(pool, i < lists ? i : i - lists, lists, thread);
    }
}

static unsigned wait_for_job(attn_pool *pool, unsigned seen)
{
    unsigned now = atomic_load(&pool->generation);
    for (int i = 0; i < SPINS && (now == seen || !(now & 1)); i++) {
        RELAX();
        now = atomic_load(&pool->generation);
    }
    if (now != seen && (now & 1)) {
        return now;
    }
    attn_lock_take(&pool->lock);
    atomic_fetch_add(&pool->asleep, 1); /* before the load: announce() does both the other way */
    for (now = atomic_load(&pool->generation); now == seen || !(now & 1);
         now = atomic_load(&pool->generation)) {
        attn_bell_wait(&pool->wake, &pool->lock);
    }
    atomic_fetch_sub(&pool->asleep, 1);
    attn_lock_give(&pool->lock);
    return now;
}

/* Leaves the core that the caller works on. Some systems wake a thread on the core of the one that
 * wakes it, and let both share it for a second. */
static void leave_caller(attn_pool *pool)
{
    const int32_t core = attn_system_core();
    if (pool->apart && core >= 0 && core == atomic_load(&pool->core)) {
        attn_system_leave_core(core);
    }
}

static void worker_main(void *arg)
{
    pool_worker *worker = arg;
    attn_pool *pool = worker->pool;
    unsigned seen = 0;
    for (;;) {
        seen = wait_for_job(pool, seen);
        leave_caller(pool);
        atomic_fetch_add(&pool->inside, 1);
        /* else the job ended before this worker joined */
        if (atomic_load(&pool->generation) == seen) {
            if (atomic_load(&pool->quit)) {
                return;
            }
            run_tasks(pool, worker->thread);
        }
        atomic_fetch_sub(&pool->inside, 1);
    }
}

static void announce(attn_pool *pool)
{
    atomic_fetch_add(&pool->generation, 1);
    if (atomic_load(&pool->asleep) > 0) {
        attn_lock_take(&pool->lock);
        attn_bell_ring(&pool->wake);
        attn_lock_give(&pool->lock);
    }
}

static void start_workers(attn_pool *pool)
{
    (void)attn_lock_init(&pool->lock);
    attn_bell_init(&pool->wake);
    atomic_store(&pool->generation, 0);
    atomic_store(&pool->inside, 0);
    atomic_store(&pool->asleep, 0);
    pool->process = attn_process();
    pool->apart = pool->threads <= attn_system_cores();
    pool->started = 0;
    for (int32_t i = 1; i < pool->threads; i++) {
        pool_worker *worker = &pool->workers[pool->started];
        *worker =
            (pool_worker){.pool = pool, .handle = {.run = worker_main, .arg = worker}, .thread = i};
        if (!attn_thread_start(&worker->handle)) {
            break;
        }
        pool->started++;
    }
}

/* Bytes before the lists. */
static size_t lists_at(int32_t threads)
{
    const size_t bytes = sizeof(attn_pool) + (size_t)threads * sizeof(pool_worker);
    return (bytes + LINE - 1) / LINE * LINE;
}

static size_t pool_bytes(int32_t threads)
{
    return lists_at(threads) + (size_t)threads * sizeof(pool_list);
}

attn_pool *attn_pool_create(int32_t threads, const attn_allocator *allocator)
{
    (void)attn_process(); /* counts forks from here on */
    attn_pool *pool = allocator->alloc(allocator->user, pool_bytes(threads), 64);
    if (pool) {
        char *lists = (char *)pool + lists_at(threads);
        *pool = (attn_pool){.threads = threads, .lists = (pool_list *)(void *)lists};
    }
    return pool;
}

void attn_pool_destroy(attn_pool *pool, const attn_allocator *allocator)
{
    if (pool->process == attn_process()) {
        atomic_store(&pool->quit, true);
        announce(pool);
        for (int32_t i = 0; i < pool->started; i++) {
            attn_thread_join(&pool->workers[i].handle);
        }
        attn_bell_destroy(&pool->wake);
        attn_lock_destroy(&pool->lock);
    }
    allocator->free(allocator->user, pool, pool_bytes(pool->threads));
}

int32_t attn_pool_threads(void *user)
{
    return ((attn_pool *)user)->threads;
}

/* With the pool taken: publishes the job, takes part, and waits until every worker that joined has
 * left. */
static void run_job(attn_pool *pool, int64_t n, void (*task)(void *, int64_t, int32_t), void *arg)
{
    if (pool->process != atomic_load(&pool->busy)) {
        start_workers(pool);
    }
    pool->n = n, pool->task = task, pool->arg = arg;
    for (int64_t i = 0; i < list_count(pool); i++) {
        atomic_store_explicit(&pool->lists[i].next, 0, memory_order_relaxed); /* before announce */
    }
    atomic_store(&pool->core, attn_system_core());
    announce(pool); /* odd: running */
    run_tasks(pool, 0);
    atomic_fetch_add(&pool->generation, 1); /* even: no worker can join any more */
    while (atomic_load(&pool->inside) != 0) {
        RELAX();
    }
}

static bool take(attn_pool *pool)
{
    uint64_t self = attn_process(), holder = atomic_load(&pool->busy);
    return holder != self && atomic_compare_exchange_strong(&pool->busy, &holder, self);
}

void attn_pool_for(void *user, int64_t n, void (*task)(void *arg, int64_t i, int32_t thread),
                   void *arg)
{
    attn_pool *pool = user;
    if (n > 1 && pool->threads > 1 && take(pool)) {
        run_job(pool, n, task, arg);
        atomic_store(&pool->busy, 0);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        task(arg, i, 0);
    }
}
