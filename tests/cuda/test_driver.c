/*
 * test_driver.c: the host side of GPUs (src/cuda/context.c, driver.c, forward.c) on a driver that has no GPU behind it
 * (fake_driver.c): what is retained, loaded and entered is given back whatever fails, and launches are such as each GPU
 * takes. No kernel runs: what they compute is tested where a GPU is (attn check --device cuda).
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

static attn_status create(int ordinal, attn_context **context)
{
    attn_context_config config = {.struct_size = sizeof config, .device = ATTN_DEVICE_CUDA, .device_ordinal = ordinal};
    return attn_context_create(&config, context);
}

static void assert_nothing_kept(void)
{
    assert_int_equal(fake.retained, 0);
    assert_int_equal(fake.loaded, 0);
}

/* ---- Opening the driver: once in a process, so each in a child of its own -------------------------------------- */

static void assert_refused(const char *sentence)
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        attn_context *context = (attn_context *)&status;
        for (int i = 0; i < 2; i++) { /* the second time no one is asked */
            if (create(0, &context) != ATTN_ERR_UNSUPPORTED || context != NULL ||
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
    assert_refused("of version 11080, 12000 is needed");
}

/* ---- Contexts -------------------------------------------------------------------------------------------------- */

static void test_primary_context(void **state)
{
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(create(1, &context), ATTN_OK);
    assert_int_equal(fake.retained, 1);
    assert_int_equal(fake.loaded, 3);
    assert_int_equal(fake.depth, 0);
    attn_context_destroy(context);
    assert_nothing_kept();
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
        assert_int_equal(create(ordinal, &context), ATTN_OK);
        assert_int_equal(fake.retained, ordinal != own.device);
        assert_int_equal(fake.depth, 1);
        assert_ptr_equal(fake.stack[0], &own);
        attn_context_destroy(context);
        assert_nothing_kept();
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
        assert_int_equal(create(wrong[i], &context), ATTN_ERR_UNSUPPORTED);
        assert_null(context);
        assert_nothing_kept();
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
        status = create(0, &context);
        assert_int_equal(fake.depth, 0);
        if (status != ATTN_OK) {
            assert_int_equal(fake.calls, fake.fail_at); /* it goes no further */
            assert_int_equal(status, ATTN_ERR_DEVICE);
            assert_non_null(strstr(attn_last_error(), "it was told to fail (CUDA_ERROR_FAKE)"));
            assert_null(context);
            assert_nothing_kept();
            failures++;
        }
    }
    assert_true(fake.calls < fake.fail_at);
    assert_true(failures > 50); /* each kernel is three of them */
    attn_context_destroy(context);
    assert_nothing_kept();
}

/* ---- Calls ----------------------------------------------------------------------------------------------------- */

/* Nothing on the host looks behind the pointers. */
static attn_forward_args args_of(attn_dtype dtype, int64_t rows, int64_t keys, int64_t d)
{
    static _Alignas(64) char memory[64];
    attn_forward_args a = {.struct_size = sizeof a};
    a.q = attn_tensor_bshd(memory, dtype, 2, rows, 4, d);
    a.k = attn_tensor_bshd(memory, dtype, 2, keys, 4, d);
    a.v = a.k, a.o = a.q;
    return a;
}

static void test_launch(void **state)
{
    attn_context *context;
    attn_forward_args a = args_of(ATTN_BF16, 300, 300, 64);
    int stream;
    (void)state;
    fake_reset();
    assert_int_equal(create(1, &context), ATTN_OK);
    int pushes = fake.pushes;
    a.stream = &stream;
    assert_int_equal(attn_forward(context, &a), ATTN_OK);
    assert_int_equal(fake.launches, 1);
    assert_string_equal(fake.last.kernel, "attn_forward_sm90_bf16_d64");
    assert_int_equal(fake.last.device, 1);
    assert_int_equal(fake.last.grid, 2 * 4 * 2);
    assert_int_equal(fake.last.threads, 128 * 4);
    assert_ptr_equal(fake.last.stream, &stream);
    assert_int_equal(fake.pushes, pushes + 1); /* this thread had none */
    assert_int_equal(fake.depth, 0);
    a.q.shape[1] = a.o.shape[1] = 0; /* nothing to do */
    fake.calls = 0;
    assert_int_equal(attn_forward(context, &a), ATTN_OK);
    assert_int_equal(fake.calls, 0);
    attn_context_destroy(context);
}

/* The calling thread's current context is used if it is of this GPU; of another one, it is an error. */
static void test_callers_context(void **state)
{
    attn_context *context;
    attn_forward_args a = args_of(ATTN_F32, 300, 300, 64);
    (void)state;
    for (int device = 0; device < FAKE_GPUS; device++) {
        struct CUctx_st own = {device};
        fake_reset();
        assert_int_equal(create(0, &context), ATTN_OK);
        int pushes = fake.pushes;
        fake.stack[fake.depth++] = &own;
        assert_int_equal(attn_forward(context, &a), device == 0 ? ATTN_OK : ATTN_ERR_INVALID_ARGUMENT);
        assert_int_equal(fake.launches, device == 0);
        assert_int_equal(fake.pushes, pushes);
        assert_int_equal(fake.depth, 1);
        attn_context_destroy(context);
        assert_nothing_kept();
    }
}

static void test_workspace(void **state)
{
    attn_context *context;
    attn_forward_args a = args_of(ATTN_BF16, 8192, 8192, 128);
    uint64_t bytes;
    _Alignas(64) char memory[256];
    (void)state;
    fake_reset();
    a.flags = ATTN_CAUSAL;
    assert_int_equal(create(0, &context), ATTN_OK);
    assert_int_equal(attn_forward_workspace(context, &a, &bytes), ATTN_OK);
    assert_in_range(bytes, 63 + 4, sizeof memory - 1); /* what aligning may cost, and the counter */
    assert_int_equal(attn_forward(context, &a), ATTN_OK);
    assert_int_equal(fake.cleared, 0); /* none is given: none is needed */
    a.workspace = memory + 1, a.workspace_bytes = bytes;
    assert_int_equal(attn_forward(context, &a), ATTN_OK);
    assert_int_equal(fake.cleared, (uintptr_t)(memory + 64));
    assert_int_equal(fake.launches, 2);
    a.workspace_bytes--;
    assert_int_equal(attn_forward(context, &a), ATTN_ERR_WORKSPACE);
    assert_int_equal(fake.launches, 2);
    attn_context_destroy(context);
}

static void test_forward_fails(void **state)
{
    attn_context *context;
    attn_forward_args a = args_of(ATTN_BF16, 8192, 8192, 128);
    _Alignas(64) char memory[256];
    attn_status status = ATTN_ERR_DEVICE;
    int failures = 0;
    (void)state;
    fake_reset();
    a.flags = ATTN_CAUSAL, a.workspace = memory, a.workspace_bytes = sizeof memory;
    assert_int_equal(create(0, &context), ATTN_OK);
    while (status != ATTN_OK) {
        fake.calls = 0, fake.fail_at = failures + 1;
        status = attn_forward(context, &a);
        assert_int_equal(fake.depth, 0);
        assert_int_equal(fake.launches, status == ATTN_OK);
        if (status != ATTN_OK) {
            assert_int_equal(fake.calls, fake.fail_at);
            assert_int_equal(status, ATTN_ERR_DEVICE);
            failures++;
        }
    }
    assert_int_equal(failures, 4 + 1 + 1 + 1 + 1); /* maps of Q, K, V, O; current, push, memset, launch */
    attn_context_destroy(context);
}

/* ---- GPUs of several kinds ------------------------------------------------------------------------------------- */

static void assert_launches_fit(attn_context *context)
{
    static const attn_dtype dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};
    static const int64_t sizes[] = {1, 8, 33, 64, 65, 128, 200, 256, 300};
    for (int n = 0; n < 4 * 9 * 2 * 2; n++) {
        attn_forward_args a = args_of(dtypes[n % 4], n / 4 % 2 ? 300 : 5, n / 4 % 2 ? 300 : 30, sizes[n / 16]);
        a.softcap = n / 8 % 2;
        assert_int_equal(attn_forward(context, &a), ATTN_OK);
        assert_int_equal(fake.launches, n + 1);
        assert_in_range(fake.last.shared_bytes, 0, fake.shared_bytes);
        assert_in_range(fake.last.threads, 64, 512);
        assert_true(fake.capability == 90 || strstr(fake.last.kernel, "sm90") == NULL);
    }
}

/* An A100, its smaller kin, an H100, and what came after it: kernels of sm_90a are for sm_90 alone. */
static void test_capabilities(void **state)
{
    static const struct {
        int capability, shared_bytes, images;
    } gpus[] = {{80, 163 << 10, 2}, {86, 99 << 10, 2}, {90, 227 << 10, 3}, {100, 227 << 10, 2}, {120, 99 << 10, 2}};
    attn_context *context;
    (void)state;
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++) {
        fake_reset();
        fake.capability = gpus[i].capability, fake.shared_bytes = gpus[i].shared_bytes;
        assert_int_equal(create(0, &context), ATTN_OK);
        assert_int_equal(fake.loaded, gpus[i].images);
        assert_launches_fit(context);
        attn_context_destroy(context);
        assert_nothing_kept();
    }
    fake_reset();
    fake.capability = 75;
    assert_int_equal(create(0, &context), ATTN_ERR_UNSUPPORTED);
    assert_non_null(strstr(attn_last_error(), "sm_75"));
    assert_nothing_kept();
}

/* Why f32 with d = 128 is not on the tensor cores of a GPU whose shared memory is too small for it. */
static void test_why(void **state)
{
    attn_context *context;
    attn_plan plan = {.struct_size = sizeof plan};
    attn_forward_args a = args_of(ATTN_F32, 300, 300, 128);
    (void)state;
    fake_reset();
    fake.capability = 80, fake.shared_bytes = 163 << 10;
    assert_int_equal(create(0, &context), ATTN_OK);
    assert_int_equal(attn_forward_plan(context, &a, &plan), ATTN_OK);
    assert_string_equal(plan.kernel, "attn_forward_f32");
    assert_non_null(strstr(plan.why, "shared memory"));
    attn_context_destroy(context);
}

/* ---- Plans of any size ----------------------------------------------------------------------------------------- */

/* A GPU's count of operations is a formula, the CPU's a count of every row's keys. */
static void test_flops(void **state)
{
    static const int64_t lengths[] = {1, 6, 100, 257}, windows[] = {-1, 0, 7, 99, 300};
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(create(0, &context), ATTN_OK);
    for (int n = 0; n < 4 * 4 * 5 * 5 * 2; n++) {
        attn_plan gpu = {.struct_size = sizeof gpu}, cpu = gpu;
        attn_forward_args a = args_of(ATTN_F32, lengths[n % 4], lengths[n / 4 % 4], 8);
        a.window_left = windows[n / 16 % 5], a.window_right = windows[n / 80 % 5];
        a.flags = ATTN_WINDOW | (n / 400 ? ATTN_TOP_LEFT : 0);
        assert_int_equal(attn_forward_plan(context, &a, &gpu), ATTN_OK);
        assert_int_equal(attn_forward_plan(NULL, &a, &cpu), ATTN_OK);
        assert_true(gpu.flops == cpu.flops);
    }
    attn_context_destroy(context);
}

/* Any extents may be declared of an axis with a stride of 0: planning takes no longer, nothing overflows, and what the
 * kernels cannot count is refused. */
static void test_sizes(void **state)
{
    attn_context *context;
    attn_plan plan = {.struct_size = sizeof plan};
    attn_forward_args a = args_of(ATTN_F32, 5, 30, 64);
    (void)state;
    fake_reset();
    assert_int_equal(create(0, &context), ATTN_OK);
    alarm(20);
    a = (attn_forward_args){.struct_size = sizeof a, .flags = ATTN_CAUSAL};
    a.q = attn_tensor_bshd(&plan, ATTN_F32, 1, INT64_C(100000000000), 1, 64);
    a.k = attn_tensor_bshd(&plan, ATTN_F32, 1, 30, 1, 64);
    a.k.shape[1] = INT64_C(1) << 60, a.k.stride[1] = 0;
    a.v = a.k, a.o = a.q;
    assert_int_equal(attn_forward_plan(context, &a, &plan), ATTN_OK);
    alarm(0);

    a = args_of(ATTN_F32, 5, 30, 64);
    a.q.shape[3] = a.k.shape[3] = INT64_C(1) << 40;
    memset(a.q.stride, 0, sizeof a.q.stride), memset(a.k.stride, 0, sizeof a.k.stride);
    assert_int_equal(attn_forward(context, &a), ATTN_ERR_UNSUPPORTED);

    a = args_of(ATTN_F32, 5, 30, 64);
    a.q.shape[0] = a.k.shape[0] = a.v.shape[0] = a.o.shape[0] = 1;
    a.cu_seqlens_q = (attn_tensor){&plan, {INT64_MAX, 1, 1, 1}, {0}, ATTN_I64, 0};
    a.cu_seqlens_k = a.cu_seqlens_q;
    assert_int_equal(attn_forward(context, &a), ATTN_ERR_UNSUPPORTED);
    assert_int_equal(fake.launches, 0);
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
        cmocka_unit_test(test_capabilities),    cmocka_unit_test(test_why),
        cmocka_unit_test(test_flops),           cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
