/*
 * test_threads.c: calls from many threads at once, on one context and on the default one, and on
 * threads with small stacks (contract P1, P5). Under TSan this is the test for data races.
 */
#include "call.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 16, ROUNDS = 12 };

/* One thread's work. cmocka's assertions jump to the test's thread, so threads only note
 * failures. */
typedef struct caller {
    attn_context *context;
    call own;
    int number;
    const char *wrong;
} caller;

/* The sentence of an error belongs to the thread that caused it. */
static void fail_on_purpose(caller *c)
{
    attn_forward_args args = *c->own.args;
    char says[64];
    snprintf(says, sizeof says, "flags = 0x%x00 has unknown bits", c->number + 1);
    args.flags = (uint64_t)(c->number + 1) << 8;
    if (attn_forward(c->context, &args) != ATTN_ERR_INVALID_ARGUMENT ||
        strcmp(attn_last_error(), says) != 0) {
        c->wrong = "the sentence of another thread";
    }
}

static void *run_caller(void *arg)
{
    caller *c = arg;
    if (attn_last_error()[0] != '\0') {
        c->wrong = "a sentence before any error";
    }
    for (int i = 0; i < ROUNDS && c->wrong == NULL; i++) {
        if (attn_forward(c->context, c->own.args) != ATTN_OK || !call_is_right(&c->own)) {
            c->wrong = "a wrong result";
        }
        fail_on_purpose(c);
    }
    return NULL;
}

static void run_all(attn_context *context, size_t stack)
{
    static caller callers[THREADS];
    pthread_t id[THREADS];
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    if (stack > 0) {
        assert_int_equal(pthread_attr_setstacksize(&attr, stack), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        char line[128];
        snprintf(line, sizeof line,
                 "b=%d hq=4 hkv=2 nq=%d nk=50 d=%d dtype=%s causal=1 lse=1 seed=%d", 1 + i % 3,
                 20 + i, 8 + i, i % 2 ? "f32" : "f16", i);
        callers[i] = (caller){.context = context, .number = i};
        call_open(&callers[i].own, line);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&id[i], &attr, run_caller, &callers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(id[i], NULL);
    }
    pthread_attr_destroy(&attr);
    for (int i = 0; i < THREADS; i++) {
        if (callers[i].wrong) {
            fail_msg("thread %d: %s", i, callers[i].wrong);
        }
        call_close(&callers[i].own);
    }
}

static void test_one_context(void **state)
{
    attn_context_config config = {.struct_size = sizeof config, .threads = 3};
    attn_context *context;
    (void)state;
    assert_int_equal(attn_context_create(&config, &context), ATTN_OK);
    run_all(context, 0);
    attn_context_destroy(context);
}

static void test_default_context(void **state)
{
    (void)state;
    run_all(NULL, 0);
}

/* musl's default; the library promises 64 KiB of stack per call. Sanitizers need more for their own
 * frames. */
static void test_small_stacks(void **state)
{
    (void)state;
#ifdef SANITIZED /* by CMakeLists.txt */
    print_message("SKIPPED: sanitized code needs larger stacks\n");
    skip();
#else
    run_all(NULL, 128 << 10);
#endif
}

static void *create_and_destroy(void *arg)
{
    caller *c = arg;
    for (int i = 0; i < ROUNDS && c->wrong == NULL; i++) {
        attn_context_config config = {.struct_size = sizeof config, .threads = 2};
        attn_context *context;
        if (attn_context_create(&config, &context) != ATTN_OK ||
            attn_forward(context, c->own.args) != ATTN_OK || !call_is_right(&c->own)) {
            c->wrong = "a wrong result";
        }
        attn_context_destroy(context);
    }
    return NULL;
}

static void test_contexts_come_and_go(void **state)
{
    caller callers[4];
    pthread_t id[4];
    (void)state;
    for (int i = 0; i < 4; i++) {
        callers[i] = (caller){.number = i};
        call_open(&callers[i].own, CALL_LINE);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&id[i], NULL, create_and_destroy, &callers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(id[i], NULL);
    }
    for (int i = 0; i < 4; i++) {
        assert_null(callers[i].wrong);
        call_close(&callers[i].own);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_context),
        cmocka_unit_test(test_default_context),
        cmocka_unit_test(test_small_stacks),
        cmocka_unit_test(test_contexts_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
