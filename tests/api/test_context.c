/*
 * test_context.c: creating contexts, their information, and the library's constants.
 */
#include "call.h"
#include "tables.h"

#include <stdio.h>
#include <stdlib.h>

static attn_status create(attn_context_config config, attn_context **context)
{
    config.struct_size = sizeof config;
    *context = (attn_context *)&config; /* must become NULL on error */
    return attn_context_create(&config, context);
}

static void test_wrong_configs(void **state)
{
    static const struct {
        attn_context_config config;
        attn_status status;
        const char *says;
    } list[] = {
        {{.threads = -1}, ATTN_ERR_INVALID_ARGUMENT, "config.threads = -1 is negative"},
        {{.threads = INT32_MIN}, ATTN_ERR_INVALID_ARGUMENT, "config.threads = -2147483648"},
        {{.device = 99}, ATTN_ERR_UNSUPPORTED, "config.device = 99"},
        {{.device = -1}, ATTN_ERR_UNSUPPORTED, "config.device = -1"},
        {{.device_ordinal = 3}, ATTN_ERR_INVALID_ARGUMENT, "config.device_ordinal = 3"},
        {{.reserved = 1}, ATTN_ERR_INVALID_ARGUMENT, "config.reserved = 1"},
        {{.cpu = "sse9"}, ATTN_ERR_UNSUPPORTED, "config.cpu = \"sse9\""},
        {{.cpu = "AVX2"}, ATTN_ERR_UNSUPPORTED, "config.cpu = \"AVX2\""},
    };
    attn_context *context;
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        attn_status status = create(list[i].config, &context);
        if (status != list[i].status || strstr(attn_last_error(), list[i].says) == NULL ||
            context != NULL) {
            fail_msg("wanted %d, \"%s\"; got %d, \"%s\"", list[i].status, list[i].says, status,
                     attn_last_error());
        }
    }
    assert_int_equal(attn_context_create(NULL, NULL), ATTN_ERR_INVALID_ARGUMENT);
    assert_string_equal(attn_last_error(), "context is NULL");
    attn_context_destroy(NULL);
}

static void *no_alloc(void *user, size_t size, size_t alignment)
{
    (void)user, (void)size, (void)alignment;
    return NULL;
}

static int32_t one_thread(void *user)
{
    (void)user;
    return 1;
}

static void test_half_an_interface(void **state)
{
    attn_context *context;
    (void)state;
    assert_int_equal(create((attn_context_config){.allocator.alloc = no_alloc}, &context),
                     ATTN_ERR_INVALID_ARGUMENT);
    assert_string_equal(attn_last_error(), "config.allocator needs both alloc and free");
    assert_int_equal(create((attn_context_config){.executor.num_threads = one_thread}, &context),
                     ATTN_ERR_INVALID_ARGUMENT);
    assert_string_equal(attn_last_error(),
                        "config.executor needs both num_threads and parallel_for");
}

/* The cap by config and by environment, the first of them the stronger. */
static void test_caps(void **state)
{
    int count, own_count;
    const char *const *names = tables_names(&count), *const *own = tables_own_bits(&own_count);
    attn_context *context;
    attn_info info = {.struct_size = sizeof info};
    char *before = getenv("ATTN_CPU"), *saved = before ? strdup(before) : NULL;
    (void)state;
    for (int i = 0; i < 2 * count; i++) {
        setenv("ATTN_CPU", i < count ? "no table" : names[i - count], 1);
        assert_int_equal(
            create((attn_context_config){.cpu = i < count ? names[i] : NULL}, &context), ATTN_OK);
        assert_int_equal(attn_get_info(context, &info), ATTN_OK);
        assert_string_equal(info.cpu_table, names[i % count]);
        assert_non_null(strstr(info.cpu_tables, names[i % count]));
        attn_context_destroy(context);
    }
    setenv("ATTN_CPU", "no table", 1);
    assert_int_equal(create((attn_context_config){.threads = 1}, &context), ATTN_ERR_UNSUPPORTED);
    assert_non_null(
        strstr(attn_last_error(), "ATTN_CPU = \"no table\" is none of this machine's tables: "));
    setenv("ATTN_CPU", "", 1); /* as if unset */
    assert_int_equal(create((attn_context_config){.threads = 1}, &context), ATTN_OK);
    assert_int_equal(attn_get_info(context, &info), ATTN_OK);
    /* the best */
    assert_string_equal(info.cpu_table, own_count > 0 ? own[own_count - 1] : names[count - 1]);
    attn_context_destroy(context);
    saved ? setenv("ATTN_CPU", saved, 1) : unsetenv("ATTN_CPU");
    free(saved);
}

/* A plan says so where its kernel is not of the instruction set that its reason is about. */
static void test_kernels_of_others(void **state)
{
    static const char *const lines[] = {"nq=3 d=8", "nq=3 d=8 dtype=f64", "nq=3 d=8 dtype=bf16",
                                        "nq=3 d=8 dtype=f16 precise=1"};
    int count;
    const char *const *names = tables_own_bits(&count);
    attn_context *context;
    attn_plan plan = {.struct_size = sizeof plan};
    (void)state;
    for (int i = 0; i < count; i++) {
        assert_int_equal(create((attn_context_config){.cpu = names[i]}, &context), ATTN_OK);
        for (size_t n = 0; n < sizeof lines / sizeof lines[0]; n++) {
            char start[64];
            call c;
            call_open(&c, lines[n]);
            assert_int_equal(attn_forward_plan(context, c.args, &plan), ATTN_OK);
            const bool own = strncmp(plan.kernel, names[i], strlen(names[i])) == 0 &&
                             plan.kernel[strlen(names[i])] == '_';
            snprintf(start, sizeof start, "%s runs such calls on %s; ", names[i], plan.kernel);
            assert_int_equal(strncmp(plan.why, start, strlen(start)) == 0, !own);
            call_close(&c);
        }
        attn_context_destroy(context);
    }
}

static void test_info(void **state)
{
    attn_info info = {.struct_size = sizeof info};
    attn_context *context;
    (void)state;
    assert_int_equal(create((attn_context_config){.threads = 5}, &context), ATTN_OK);
    assert_int_equal(attn_get_info(context, &info), ATTN_OK);
    assert_int_equal(info.threads, 5);
    assert_string_equal(info.version, "0.1.0");
    assert_true(strlen(info.build) > 3);
    assert_non_null(info.cpu_features);
    assert_true(info.l1d_bytes >= 0 && info.l2_bytes >= 0 && info.l3_bytes >= 0);
    attn_context_destroy(context);
    assert_int_equal(attn_get_info(NULL, &info), ATTN_OK);
    assert_true(info.threads >= 1);
}

/* Pinned for ever. */
static void test_constants(void **state)
{
    static const char *const names[] = {
        "ok",       "invalid argument", "unknown field",       "unsupported",
        "overflow", "out of memory",    "workspace too small", "device error"};
    static const size_t sizes[] = {0, 8, 4, 2, 2, 1, 4, 8, 1, 1, 1, 1, 1, 1, 0};
    (void)state;
    for (int i = 0; i < 8; i++) {
        assert_string_equal(attn_status_string((attn_status)i), names[i]);
    }
    assert_string_equal(attn_status_string((attn_status)8), "unknown status");
    assert_string_equal(attn_status_string((attn_status)-1), "unknown status");
    for (int32_t i = 0; i < 15; i++) {
        assert_int_equal(attn_dtype_size(i), sizes[i]);
    }
    assert_int_equal(attn_dtype_size(-1), 0);
    assert_int_equal(attn_dtype_size(INT32_MIN), 0);
    assert_int_equal(attn_dtype_size(INT32_MAX), 0);
    assert_int_equal(attn_version(),
                     ATTN_VERSION_MAJOR * 10000 + ATTN_VERSION_MINOR * 100 + ATTN_VERSION_PATCH);
    assert_int_equal(sizeof(attn_tensor), 80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_configs), cmocka_unit_test(test_half_an_interface),
        cmocka_unit_test(test_caps),          cmocka_unit_test(test_info),
        cmocka_unit_test(test_constants),     cmocka_unit_test(test_kernels_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
