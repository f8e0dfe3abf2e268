/*
 * threads.c: see threads.h.
 */
#include "threads.h"

#include <stddef.h>

#include "fail.h"

#ifdef _OPENMP
#include <omp.h>

void threads_set(int count)
{
    if (count > 0) {
        omp_set_num_threads(count);
    }
}

int threads_count(void)
{
    return omp_get_max_threads();
}

int threads_self(void)
{
    return omp_get_thread_num();
}

#else

void threads_set(int count)
{
    (void)count;
}

int threads_count(void)
{
    return 1;
}

int threads_self(void)
{
    return 0;
}
#endif

static int32_t number(void *user)
{
    (void)user;
    return threads_count();
}

static void parallel_for(void *user, int64_t n, void (*task)(void *arg, int64_t i, int32_t thread),
                         void *arg)
{
    (void)user;
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < n; i++) {
        task(arg, i, threads_self());
    }
}

attn_context *threads_context(void)
{
    attn_context *context;
    attn_context_config config = {
        .struct_size = sizeof config,
        .executor = {.num_threads = number, .parallel_for = parallel_for},
    };
    if (attn_context_create(&config, &context) != ATTN_OK) {
        fail(EXIT_INTERNAL, "attn_context_create: %s", attn_last_error());
    }
    return context;
}
