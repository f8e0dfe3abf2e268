/*
 * test_memory.c: allocations and threads of the library, and calls without them (contract F1,
 * B118).
 *
 * The linker sends malloc, its relatives and pthread_create through the __wrap_ functions below
 * (-Wl,--wrap), for the library in this program too. No test here may use the default context but
 * the one about it.
 */
#include "call.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* ---- counted and failing functions of the C library ------------------------------------------ */

static atomic_int allocations; /* calls since the last reset */
/* aligned_alloc, the call of the library's default allocator */
static atomic_bool malloc_refuses;
static atomic_int threads_until_failure = 1 << 30;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_pthread_create(pthread_t *id, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);

void *__wrap_malloc(size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __real_realloc(old, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return atomic_load(&malloc_refuses) ? NULL : __real_aligned_alloc(alignment, size);
}

int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg)
{
    return atomic_fetch_sub(&threads_until_failure, 1) <= 0
               ? EAGAIN
               : __real_pthread_create(id, attr, run, arg);
}

/* ---- an allocator that keeps books and fails on request -------------------------------------- */

typedef struct books {
    int calls, fail_at; /* the call number that fails, from 1; 0 = none */
    bool forever;       /* and all after it */
    int live;
    size_t bytes;
} books;

static void *books_alloc(void *user, size_t size, size_t alignment)
{
    books *b = user;
    b->calls++;
    assert_int_equal(alignment, 64);
    assert_true(size > 0 && size % alignment == 0);
    if (b->calls == b->fail_at || (b->forever && b->fail_at > 0 && b->calls > b->fail_at)) {
        return NULL;
    }
    size_t *block = __real_aligned_alloc(alignment, size + 2 * alignment);
    assert_non_null(block);
    *block = size;
    b->live++;
    b->bytes += size;
    /* a poisoned block, and a canary behind it */
    memset((char *)block + alignment, 0xFF, size + alignment);
    return (char *)block + alignment;
}

/* The block begins 64 bytes before, as all alignments are 64. */
static void books_free(void *user, void *ptr, size_t size)
{
    books *b = user;
    size_t *block = (size_t *)(void *)((char *)ptr - 64);
    assert_int_equal(*block, size);
    for (size_t i = 0; i < 64; i++) {
        assert_int_equal(((unsigned char *)ptr)[size + i], 0xFF);
    }
    b->live--;
    b->bytes -= size;
    free(block);
}

static attn_status create(books *b, int threads, attn_context **context)
{
    attn_context_config config = {.struct_size = sizeof config, .threads = threads};
    config.allocator = (attn_allocator){b, books_alloc, books_free};
    return attn_context_create(&config, context);
}

/* One life of a context under an allocator that fails at call k; true once k is beyond the last
 * call. */
static bool live_with_failure(call *c, int k, bool forever)
{
    books b = {.fail_at = k, .forever = forever};
    attn_context *context = (attn_context *)&b;
    attn_status status = create(&b, 3, &context);
    if (status != ATTN_OK) {
        assert_int_equal(status, ATTN_ERR_OUT_OF_MEMORY);
        assert_non_null(strstr(attn_last_error(), "no memory for"));
        assert_null(context);
    } else {
        status = attn_forward(context, c->args);
        if (status != ATTN_OK) {
            assert_int_equal(status, ATTN_ERR_OUT_OF_MEMORY);
            assert_non_null(strstr(attn_last_error(), "no memory for a workspace of"));
            assert_true(call_is_untouched(c));
            b.fail_at = 0;
            assert_int_equal(attn_forward(context, c->args), ATTN_OK);
        }
        assert_true(call_is_right(c));
        attn_context_destroy(context);
    }
    assert_int_equal(b.live, 0);
    assert_int_equal(b.bytes, 0);
    return b.calls < k;
}

static void test_every_allocation_fails(void **state)
{
    call c;
    (void)state;
    call_open(&c, CALL_LINE);
    for (int forever = 0; forever < 2; forever++) {
        int k = 1;
        while (!live_with_failure(&c, k, forever)) {
            k++;
        }
        assert_in_range(k, 4, 20); /* the context, its pool and a workspace failed at least */
    }
    call_close(&c);
}

static void test_default_context_without_memory(void **state)
{
    call c;
    (void)state;
    call_open(&c, CALL_LINE);
    atomic_store(&malloc_refuses, true);
    attn_status first = attn_forward(NULL, c.args);
    atomic_store(&malloc_refuses, false);
    assert_int_equal(first, ATTN_ERR_OUT_OF_MEMORY);
    assert_true(call_is_untouched(&c));
    assert_int_equal(attn_forward(NULL, c.args), ATTN_OK);
    assert_true(call_is_right(&c));
    call_close(&c);
}

/* B118: the library goes without threads that the system refuses to start. */
static void test_every_thread_fails(void **state)
{
    call c;
    (void)state;
    call_open(&c, CALL_LINE);
    for (int k = 0; k < 4; k++) {
        books b = {0};
        attn_context *context;
        assert_int_equal(create(&b, 4, &context), ATTN_OK);
        atomic_store(&threads_until_failure, k);
        assert_int_equal(attn_forward(context, c.args), ATTN_OK);
        atomic_store(&threads_until_failure, 1 << 30);
        assert_true(call_is_right(&c));
        assert_int_equal(attn_forward(context, c.args), ATTN_OK);
        assert_true(call_is_right(&c));
        attn_context_destroy(context);
        assert_int_equal(b.live, 0);
    }
    call_close(&c);
}

/* With a workspace no call allocates, whatever the function; without one attn_forward allocates
 * once. */
static void test_a_workspace_saves_all_allocations(void **state)
{
    static char room[1 << 22];
    books b = {0};
    attn_context *context;
    attn_plan plan = {.struct_size = sizeof plan};
    call c;
    (void)state;
    call_open(&c, CALL_LINE " mask=qk bias=f16:bhqk sinks=h");
    assert_int_equal(create(&b, 3, &context), ATTN_OK);
    attn_forward_args args = *c.args;
    args.workspace = room;
    b.calls = 0;
    atomic_store(&allocations, 0);
    assert_int_equal(attn_forward_workspace(context, &args, &args.workspace_bytes), ATTN_OK);
    assert_in_range(args.workspace_bytes, 1, sizeof room);
    assert_int_equal(attn_forward_plan(context, &args, &plan), ATTN_OK);
    assert_int_equal(attn_forward(context, &args), ATTN_OK);
    assert_int_equal(atomic_load(&allocations), 0);
    assert_int_equal(b.calls, 0);
    assert_true(call_is_right(&c));
    args.workspace = NULL;
    assert_int_equal(attn_forward(context, &args), ATTN_OK);
    assert_int_equal(b.calls, 1);
    assert_true(call_is_right(&c));
    attn_context_destroy(context);
    call_close(&c);
}

/* The required size is enough at any alignment, and memory around it stays as it is. */
static void test_workspace_at_any_address(void **state)
{
    call c;
    books b = {0};
    attn_context *context;
    (void)state;
    call_open(&c, CALL_LINE);
    assert_int_equal(create(&b, 3, &context), ATTN_OK);
    attn_forward_args args = *c.args;
    assert_int_equal(attn_forward_workspace(context, &args, &args.workspace_bytes), ATTN_OK);
    for (size_t shift = 0; shift < 64; shift += 7) {
        guarded_region room;
        assert_true(region_create(&room, args.workspace_bytes + shift, PLACE_GUARD_AFTER));
        args.workspace = room.first + shift;
        assert_int_equal(attn_forward(context, &args), ATTN_OK);
        for (size_t i = 0; i < shift; i++) {
            assert_int_equal(room.first[i], 0xFF);
        }
        assert_true(call_is_right(&c));
        region_free(&room);
    }
    attn_context_destroy(context);
    call_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_allocation_fails),
        cmocka_unit_test(test_default_context_without_memory),
        cmocka_unit_test(test_every_thread_fails),
        cmocka_unit_test(test_a_workspace_saves_all_allocations),
        cmocka_unit_test(test_workspace_at_any_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
