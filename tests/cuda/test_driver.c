/*
 * test_driver.c: the host side of GPUs (src/cuda/context.c, driver.c, forward.c) on a driver that
 * has no GPU behind it (fake_driver.c): what is retained, loaded and entered is given back whatever
 * fails. No kernel runs: what they are handed is tested in test_launches.c, what they compute where
 * a GPU is (attn check --device cuda).
 */
#include "cuda/cuda.h"
#include "fake_driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- Opening the driver: once in a process, so each in a child of its own -------------------- */

static void assert_refused(const char *sentence)
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        attn_context *context = (attn_context *)&status;
        for (int i = 0; i < 2; i++) { /* the second time no one is asked */
            if (fake_create(0, &context) != ATTN_ERR_UNSUPPORTED || context != NULL ||
                strstr(attn_last_error(), sentence) == NULL) {
                fprintf(stderr, "expected \"%s\", got \"%s\"\n", sentence, attn_last_error());
                _exit(1);
            }
        }
        _exit(fake.retained + fake.loaded + fake.depth);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_no_driver(void **state)
{
    (void)state;
    fake_reset();
    fake.library = false;
    assert_refused("no CUDA driver: there is none");
    fake_reset();
    fake.lacks = "cuLibraryLoadData";
    assert_refused("the CUDA driver lacks cuLibraryLoadData");
    fake_reset();
    fake.init = FAKE_ERROR;
    assert_refused("finds no GPU it can use: CUDA_ERROR_FAKE");
    fake_reset();
    fake.gpus = 0; /* CUDA_VISIBLE_DEVICES= */
    assert_refused("finds no GPU it can use: no GPU");
    fake_reset();
    fake.version = 11080;
    assert_refused("of version 11080, 12010 is needed");
}

/* ---- Contexts -------------------------------------------------------------------------------- */

static void test_primary_context(void **state)
{
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(1, &context), ATTN_OK);
    assert_int_equal(fake.retained, 1);
    assert_int_equal(fake.loaded, ATTN_CUDA_FAMILIES);
    assert_int_equal(fake.depth, 0);
    attn_context_destroy(context);
    assert_true(fake_keeps_nothing());
}

/* The creator's own context is taken if it is of this GPU, and stays current in any case. */
static void test_own_context(void **state)
{
    attn_context *context;
    struct CUctx_st own = {0};
    (void)state;
    for (int ordinal = 0; ordinal < FAKE_GPUS; ordinal++) {
        fake_reset();
        fake.stack[fake.depth++] = &own;
        assert_int_equal(fake_create(ordinal, &context), ATTN_OK);
        assert_int_equal(fake.retained, ordinal != own.device);
        assert_int_equal(fake.depth, 1);
        assert_ptr_equal(fake.stack[0], &own);
        attn_context_destroy(context);
        assert_true(fake_keeps_nothing());
        assert_int_equal(fake.depth, 1);
    }
}

static void test_ordinals(void **state)
{
    static const int wrong[] = {-1, FAKE_GPUS, INT32_MAX, INT32_MIN};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        attn_context *context;
        fake_reset();
        assert_int_equal(fake_create(wrong[i], &context), ATTN_ERR_UNSUPPORTED);
        assert_null(context);
        assert_true(fake_keeps_nothing());
    }
}

/* Whichever call fails. */
static void test_create_fails(void **state)
{
    attn_context *context;
    attn_status status = ATTN_ERR_DEVICE;
    int failures = 0;
    (void)state;
    while (status != ATTN_OK) {
        fake_reset();
        fake.fail_at = failures + 1;
        status = fake_create(0, &context);
        assert_int_equal(fake.depth, 0);
        if (status != ATTN_OK) {
            assert_int_equal(fake.calls, fake.fail_at); /* it goes no further */
            assert_int_equal(status, ATTN_ERR_DEVICE);
            assert_non_null(strstr(attn_last_error(), "it was told to fail (CUDA_ERROR_FAKE)"));
            assert_null(context);
            assert_true(fake_keeps_nothing());
            failures++;
        }
    }
    assert_true(fake.calls < fake.fail_at);
    assert_true(failures > 50); /* each kernel is three of them */
    attn_context_destroy(context);
    assert_true(fake_keeps_nothing());
}

/* ---- Calls ----------------------------------------------------------------------------------- */

static void test_launch(void **state)
{
    attn_context *context;
    attn_forward_args args = fake_args(ATTN_BF16, 300, 300, 64);
    int stream;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(1, &context), ATTN_OK);
    int pushes = fake.pushes;
    args.stream = &stream;
    assert_int_equal(attn_forward(context, &args), ATTN_OK);
    assert_int_equal(fake.launches, 1);
    assert_string_equal(fake.last.kernel, "attn_forward_sm90_bf16_d64");
    assert_int_equal(fake.last.device, 1);
    assert_int_equal(fake.last.grid, 2 * 4 * 2);
    assert_int_equal(fake.last.threads, 128 * 4);
    assert_ptr_equal(fake.last.stream, &stream);
    assert_int_equal(fake.pushes, pushes + 1); /* this thread had none */
    assert_int_equal(fake.depth, 0);
    args.q.shape[1] = args.o.shape[1] = 0; /* nothing to do */
    fake.calls = 0;
    assert_int_equal(attn_forward(context, &args), ATTN_OK);
    assert_int_equal(fake.calls, 0);
    attn_context_destroy(context);
}

/* The calling thread's current context is used if it is of this GPU; one of another GPU waits. */
static void test_callers_context(void **state)
{
    attn_context *context;
    attn_forward_args args = fake_args(ATTN_F32, 300, 300, 64);
    (void)state;
    for (int device = 0; device < FAKE_GPUS; device++) {
        struct CUctx_st own = {device};
        fake_reset();
        assert_int_equal(fake_create(0, &context), ATTN_OK);
        int pushes = fake.pushes;
        fake.stack[fake.depth++] = &own;
        assert_int_equal(attn_forward(context, &args), ATTN_OK);
        assert_int_equal(fake.launches, 1);
        assert_int_equal(fake.last.device, 0);
        assert_int_equal(fake.pushes, pushes + (device != 0));
        assert_int_equal(fake.depth, 1);
        assert_ptr_equal(fake.stack[0], &own);
        attn_context_destroy(context);
        assert_true(fake_keeps_nothing());
    }
}

static void test_workspace(void **state)
{
    attn_context *context;
    attn_forward_args args = fake_args(ATTN_BF16, 8192, 8192, 128);
    uint64_t bytes;
    _Alignas(64) char memory[256];
    (void)state;
    fake_reset();
    args.flags = ATTN_CAUSAL;
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    assert_int_equal(attn_forward_workspace(context, &args, &bytes), ATTN_OK);
    assert_in_range(bytes, 63 + 4, sizeof memory - 1); /* the cost of aligning, and the counter */
    assert_int_equal(attn_forward(context, &args), ATTN_OK);
    assert_int_equal(fake.cleared, 0); /* none is given: none is needed */
    args.workspace = memory + 1, args.workspace_bytes = bytes;
    assert_int_equal(attn_forward(context, &args), ATTN_OK);
    assert_int_equal(fake.cleared, (uintptr_t)(memory + 64));
    assert_int_equal(fake.launches, 2);
    args.workspace_bytes--;
    assert_int_equal(attn_forward(context, &args), ATTN_ERR_WORKSPACE);
    assert_int_equal(fake.launches, 2);
    attn_context_destroy(context);
}

static void test_forward_fails(void **state)
{
    attn_context *context;
    attn_forward_args args = fake_args(ATTN_BF16, 8192, 8192, 128);
    _Alignas(64) char memory[256];
    attn_status status = ATTN_ERR_DEVICE;
    int failures = 0;
    (void)state;
    fake_reset();
    args.flags = ATTN_CAUSAL, args.workspace = memory, args.workspace_bytes = sizeof memory;
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    while (status != ATTN_OK) {
        fake.calls = 0, fake.fail_at = failures + 1;
        status = attn_forward(context, &args);
        assert_int_equal(fake.depth, 0);
        assert_int_equal(fake.launches, status == ATTN_OK);
        if (status != ATTN_OK) {
            assert_int_equal(fake.calls, fake.fail_at);
            assert_int_equal(status, ATTN_ERR_DEVICE);
            failures++;
        }
    }
    /* maps of Q, K, V, O; current, push, memset, launch */
    assert_int_equal(failures, 4 + 1 + 1 + 1 + 1);
    attn_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_driver), /* first: the driver is opened once */
        cmocka_unit_test(test_primary_context), cmocka_unit_test(test_own_context),
        cmocka_unit_test(test_ordinals),        cmocka_unit_test(test_create_fails),
        cmocka_unit_test(test_launch),          cmocka_unit_test(test_callers_context),
        cmocka_unit_test(test_workspace),       cmocka_unit_test(test_forward_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
