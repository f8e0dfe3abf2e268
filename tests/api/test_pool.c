/*
 * test_pool.c: which tasks of a job the threads of the default executor take: each task once, and
 * where there are at least four for each thread, thread t first t, t + threads .., then others.
 */
#include "cpu/machine/pool.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

enum { MOST = 64 };

typedef struct job {
    int64_t n;
    int32_t threads;
    atomic_int runs[MOST];
    atomic_int caller_runs, own, strays; /* strays: the caller's tasks of others before its own */
} job;

static bool has_lists(const job *j)
{
    return j->n >= INT64_C(4) * j->threads;
}

static int64_t own_tasks(const job *j)
{
    return (j->n + j->threads - 1) / j->threads;
}

/* Workers wait in their first task until the caller is done with its list, so that nobody takes
 * tasks of the caller's, where each thread has a list. */
static void run(void *arg, int64_t i, int32_t thread)
{
    job *j = arg;
    atomic_fetch_add(&j->runs[i], 1);
    if (thread != 0) {
        while (has_lists(j) && atomic_load(&j->caller_runs) < own_tasks(j)) {
        }
    } else {
        const bool own = i % j->threads == 0;
        atomic_fetch_add(&j->own, own);
        atomic_fetch_add(&j->strays, !own && atomic_load(&j->own) < own_tasks(j));
        atomic_fetch_add(&j->caller_runs, 1);
    }
}

static void *take(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    return aligned_alloc(alignment, bytes);
}

static void give(void *user, void *memory, size_t bytes)
{
    (void)user, (void)bytes;
    free(memory);
}

static void test_own_tasks_first(void **state)
{
    const attn_allocator allocator = {NULL, take, give};
    (void)state;
    for (int32_t threads = 1; threads <= 5; threads++) {
        attn_pool *pool = attn_pool_create(threads, &allocator);
        assert_non_null(pool);
        for (int64_t n = 0; n <= MOST; n += n < 8 ? 1 : 7) {
            job j = {.n = n, .threads = threads};
            attn_pool_for(pool, n, run, &j);
            for (int64_t i = 0; i < n; i++) {
                assert_int_equal(atomic_load(&j.runs[i]), 1);
            }
            if (has_lists(&j)) {
                assert_int_equal(atomic_load(&j.strays), 0);
            }
        }
        attn_pool_destroy(pool, &allocator);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_own_tasks_first)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
