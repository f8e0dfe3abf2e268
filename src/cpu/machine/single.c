/*
 * single.c: stands in for pool.c and cores.c where a program has one thread, as in WebAssembly: a
 * loop that runs its tasks one after the other.
 */
#include "cpu/machine/cores.h"
#include "cpu/machine/pool.h"

struct attn_pool {
    int32_t threads; /* the number asked for: plans share out scratch by it, though one thread
                      * runs */
};

static const size_t POOL_BYTES = 64;

attn_pool *attn_pool_create(int32_t threads, const attn_allocator *allocator)
{
    attn_pool *pool = allocator->alloc(allocator->user, POOL_BYTES, 64);
    if (pool) {
        *pool = (attn_pool){.threads = threads};
    }
    return pool;
}

void attn_pool_destroy(attn_pool *pool, const attn_allocator *allocator)
{
    allocator->free(allocator->user, pool, POOL_BYTES);
}

int32_t attn_pool_threads(void *user)
{
    return ((attn_pool *)user)->threads;
}

void attn_pool_for(void *user, int64_t n, void (*task)(void *arg, int64_t i, int32_t thread),
                   void *arg)
{
    (void)user;
    for (int64_t i = 0; i < n; i++) {
        task(arg, i, 0);
    }
}

int32_t attn_cpu_cores(void)
{
    return 1;
}

int32_t attn_cpu_quota(const char *groups, const char *mount)
{
    (void)groups, (void)mount;
    return INT32_MAX;
}
