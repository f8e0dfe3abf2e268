/*
 * test_table.c: a GPU's operations through the table of its device: what is refused, and what it
 * lacks.
 */
#include "fake_driver.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

/* What kernels do not read, and what the host sees without reading. */
static void test_refusals(void **state)
{
    attn_context *context;
    attn_forward_args plain = fake_args(ATTN_BF16, 300, 300, 64), args = plain;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    args.mask = attn_tensor_bshd(fake_memory(4), ATTN_I32, 1, 1, 300, 300);
    assert_int_equal(attn_forward(context, &args), ATTN_ERR_UNSUPPORTED);
    assert_string_equal(attn_last_error(),
                        "mask.dtype = 6 (i32): GPUs take masks of bool, u8 or i8");
    args.mask.dtype = ATTN_F32;
    assert_int_equal(attn_forward(context, &args), ATTN_ERR_INVALID_ARGUMENT);
    args.mask.dtype = ATTN_U8;
    assert_int_equal(attn_forward(context, &args), ATTN_OK);
    args = plain, args.o = args.q;
    assert_int_equal(attn_forward(context, &args), ATTN_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(attn_last_error(), "o and q overlap"));
    attn_context_destroy(context);
}

/* A plan is that of the call, whose tensors may have no memory yet. */
static void test_plan_of_shapes(void **state)
{
    attn_context *context;
    attn_forward_args args = fake_args(ATTN_BF16, 300, 300, 64);
    attn_plan with = {.struct_size = sizeof with}, without = with;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    assert_int_equal(attn_forward_plan(context, &args, &with), ATTN_OK);
    args.q.data = args.k.data = args.v.data = args.o.data = NULL;
    assert_int_equal(attn_forward_plan(context, &args, &without), ATTN_OK);
    assert_string_equal(without.kernel, with.kernel);
    assert_string_equal(without.why, with.why);
    attn_context_destroy(context);
}

/* Operations that the table of GPUs lacks. */
static void test_unsupported(void **state)
{
    attn_context *context;
    attn_dropout_mask_args d = {.struct_size = sizeof d};
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    assert_int_equal(attn_dropout_mask(context, &d), ATTN_ERR_UNSUPPORTED);
    assert_non_null(
        strstr(attn_last_error(), "attn_dropout_mask is not supported by the context's device: "));
    attn_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_plan_of_shapes),
        cmocka_unit_test(test_unsupported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
