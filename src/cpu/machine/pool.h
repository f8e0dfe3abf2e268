/*
 * pool.h: the default executor, a pool of threads behind one parallel loop, for calls without an
 * executor of the caller's.
 */
#ifndef ATTN_CPU_POOL_H
#define ATTN_CPU_POOL_H

#include <attn/attn.h>

typedef struct attn_pool attn_pool;

/* Makes a pool of `threads` threads, the caller's included. They start on first use; the system may
 * refuse some. NULL without memory. */
attn_pool *attn_pool_create(int32_t threads, const attn_allocator *allocator);
void attn_pool_destroy(attn_pool *pool, const attn_allocator *allocator);

/* The two members of attn_executor; user is the attn_pool. A loop that finds the pool busy (another
 * thread's call, or a nested one) runs on its caller alone. */
int32_t attn_pool_threads(void *user);
void attn_pool_for(void *user, int64_t n, void (*task)(void *arg, int64_t i, int32_t thread),
                   void *arg);

#endif
