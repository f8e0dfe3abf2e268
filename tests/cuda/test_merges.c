/*
 * test_merges.c: launches of attn_merge and its gradients on a pretended GPU (fake_driver.c): the
 * kernel for so many parts, the grid, the stream, refusals.
 */
#include "fake_driver.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

enum { MOST = 65 };

typedef struct merge_views {
    attn_tensor o[MOST], lse[MOST], d_o[MOST];
    attn_merge_args args;
    attn_merge_backward_args back;
} merge_views;

static void make_views(merge_views *m, int64_t parts, int64_t rows)
{
    memset(m, 0, sizeof *m);
    for (int i = 0; i < MOST; i++) {
        m->o[i] = attn_tensor_bshd(fake_memory(3 * i + 2), ATTN_F32, 2, rows, 4, 64);
        m->lse[i] = attn_tensor_bshd(fake_memory(3 * i + 3), ATTN_F32, 2, rows, 4, 1);
        m->d_o[i] = attn_tensor_bshd(fake_memory(3 * i + 4), ATTN_F32, 2, rows, 4, 64);
    }
    m->args = (attn_merge_args){.struct_size = sizeof m->args,
                                .parts = parts,
                                .part_o = m->o,
                                .part_lse = m->lse,
                                .stream = fake_memory(1)};
    m->args.o = attn_tensor_bshd(fake_memory(0), ATTN_F32, 2, rows, 4, 64);
    m->back = (attn_merge_backward_args){.struct_size = sizeof m->back,
                                         .forward = &m->args,
                                         .d_o = m->args.o,
                                         .part_d_o = m->d_o,
                                         .stream = fake_memory(1)};
}

static void test_kernels(void **state)
{
    static const struct {
        int64_t parts;
        const char *kernel, *gradients;
    } cases[] = {{1, "attn_merge_few", "attn_merge_few_gradients"},
                 {4, "attn_merge_few", "attn_merge_few_gradients"},
                 {5, "attn_merge_many", "attn_merge_many_gradients"},
                 {64, "attn_merge_many", "attn_merge_many_gradients"}};
    static merge_views m;
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    for (int i = 0; i < 4; i++) {
        make_views(&m, cases[i].parts, 301);
        assert_int_equal(attn_merge(context, &m.args), ATTN_OK);
        assert_string_equal(fake.last.kernel, cases[i].kernel);
        assert_int_equal(fake.last.grid, 301); /* 2408 rows, 8 each */
        assert_ptr_equal(fake.last.stream, fake_memory(1));
        assert_int_equal(attn_merge_backward(context, &m.back), ATTN_OK);
        assert_string_equal(fake.last.kernel, cases[i].gradients);
        assert_ptr_equal(fake.last.stream, fake_memory(1));
    }
    assert_int_equal(fake.launches, 8);
    attn_context_destroy(context);
    assert_true(fake_keeps_nothing());
}

static void test_refusals(void **state)
{
    static merge_views m;
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    make_views(&m, 65, 3);
    assert_int_equal(attn_merge(context, &m.args), ATTN_ERR_UNSUPPORTED);
    assert_string_equal(attn_last_error(), "parts = 65: a GPU merges at most 64 at once");
    assert_int_equal(attn_merge_backward(context, &m.back), ATTN_ERR_UNSUPPORTED);
    make_views(&m, 2, 0);
    assert_int_equal(attn_merge(context, &m.args), ATTN_OK);
    assert_int_equal(fake.launches, 0); /* no rows, no launch */
    make_views(&m, 2, 3);
    m.args.stream = NULL;
    fake.fail_at = fake.calls + 2; /* after the current context: the launch */
    assert_int_equal(attn_merge(context, &m.args), ATTN_ERR_DEVICE);
    attn_context_destroy(context);
    make_views(&m, 2, 3);
    assert_int_equal(attn_merge(NULL, &m.args), ATTN_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(attn_last_error(), "stream = "));
    assert_int_equal(attn_merge_backward(NULL, &m.back), ATTN_ERR_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
